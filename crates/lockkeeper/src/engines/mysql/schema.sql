-- lockkeeper's tables and procedures, version 3, for MariaDB 10.6 and MySQL 8. Running this again
-- changes nothing. Run over an earlier version, it upgrades that and keeps the data: stop the
-- clients of that version first.
--
-- One row of lockkeeper_lock per key is the latch under which everything about that key is decided;
-- it also has the key's fence. lockkeeper_claim is the queue: holders and waiters, in order. An
-- uncontended holder is recorded in the lock's own row, so that one statement can acquire a lock;
-- the next client moves it to the queue, and a renewal copies it there: a renewal must not write
-- the lock's row, which a transaction of the user may have locked for a while. lockkeeper_freed
-- records which token released its lock, without the disk. It only ever frees that one token, so
-- whatever happens to this table, it can make a client wait for a lease to expire, and nothing
-- worse. Time is SYSDATE(6) in UTC, read after the latch is held: NOW() would be older than the
-- wait for it. Reads are SELECT … INTO: MariaDB locks what IF EXISTS (SELECT …) reads in a
-- procedure, and would wait.
DELIMITER //
DROP PROCEDURE IF EXISTS lockkeeper_upgrade //
CREATE PROCEDURE lockkeeper_upgrade() SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_found, v_version BIGINT;
  -- The column exists already.
  DECLARE CONTINUE HANDLER FOR 1060 BEGIN END;
  SELECT COUNT(*) INTO v_found FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_version';
  IF v_found > 0 THEN
    SELECT MAX(version) INTO v_version FROM lockkeeper_version;
  END IF;
  IF v_version > 3 THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT =
      'the tables of lockkeeper have a later version here than 3; use the newer lockkeeper, which made them';
  ELSEIF v_version < 2 THEN
    ALTER TABLE lockkeeper_lock
      ADD COLUMN token VARBINARY(64) NULL,
      ADD COLUMN owner VARBINARY(128) NULL,
      ADD COLUMN kind VARBINARY(16) NULL,
      ADD COLUMN until DATETIME(6) NULL,
      ADD COLUMN who VARCHAR(512) CHARACTER SET utf8mb4 NULL,
      ADD COLUMN note TEXT CHARACTER SET utf8mb4 NULL;
    ALTER TABLE lockkeeper_version
      ADD COLUMN swept_lock VARBINARY(512) NOT NULL DEFAULT '',
      ADD COLUMN swept_bound VARBINARY(512) NOT NULL DEFAULT '';
    -- Its contents only save the rest of a lease.
    DROP TABLE IF EXISTS lockkeeper_freed;
    -- Permits were numbers: 0,1,7 is 0-0,1-1,7-7 now.
    UPDATE lockkeeper_claim
      SET slots = REGEXP_REPLACE(slots, '([0-9]+)', 
        /*M! CONCAT(CHAR(92), '1-', CHAR(92), '1') */ /*!80001 '$1-$1' */)
      WHERE slots <> '' AND LOCATE('-', slots) = 0;
  END IF;
END //
CALL lockkeeper_upgrade() //
DROP PROCEDURE lockkeeper_upgrade //
CREATE TABLE IF NOT EXISTS lockkeeper_lock (
  name  VARBINARY(512) NOT NULL PRIMARY KEY,
  fence BIGINT NOT NULL,
  next  BIGINT NOT NULL DEFAULT 0,
  used  DATETIME(6) NOT NULL,        -- when it was last granted
  token VARBINARY(64) NULL,          -- the uncontended holder; null if the queue decides, '' if it was broken
  owner VARBINARY(128) NULL,
  kind  VARBINARY(16) NULL,
  until DATETIME(6) NULL,
  who   VARCHAR(512) CHARACTER SET utf8mb4 NULL,
  note  TEXT CHARACTER SET utf8mb4 NULL
) ENGINE = InnoDB //
-- There is a row for every uncontended holder, to be replaced when it releases the lock: if there
-- is none then, the lock was broken, or the procedure has to be called. After `until` the lease of
-- the token has expired anyway.
CREATE TABLE IF NOT EXISTS lockkeeper_freed (
  id    BINARY(32) NOT NULL PRIMARY KEY,  -- SHA-256 of the key: rows in memory have a fixed length
  token VARBINARY(64) NOT NULL,
  until DATETIME(6) NOT NULL
) ENGINE = InnoDB //
DROP PROCEDURE IF EXISTS lockkeeper_move //
-- It is in memory, unless other servers follow this one: members of a cluster do not share such
-- tables, and a replica whose memory is empty after a restart stops at the first change of a row
-- that it does not have. Nor if the server refuses such tables.
CREATE PROCEDURE lockkeeper_move() SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_shared, v_disk BIGINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR 1286, 1290, 3161 BEGIN END;
  SELECT COUNT(*) INTO v_shared
    FROM /*M! information_schema.global_variables */ /*!80000 performance_schema.global_variables */
    WHERE variable_name IN ('log_bin', 'wsrep_on') AND variable_value = 'ON';
  SELECT COUNT(*) INTO v_disk FROM information_schema.tables
    WHERE table_schema = DATABASE() AND table_name = 'lockkeeper_freed' AND engine = 'InnoDB';
  IF v_shared > 0 AND v_disk = 0 THEN
    ALTER TABLE lockkeeper_freed ENGINE = InnoDB;
  ELSEIF v_shared = 0 AND v_disk > 0 THEN
    ALTER TABLE lockkeeper_freed ENGINE = MEMORY;
  END IF;
END //
CALL lockkeeper_move() //
DROP PROCEDURE lockkeeper_move //
CREATE TABLE IF NOT EXISTS lockkeeper_claim (
  name    VARBINARY(512) NOT NULL,
  token   VARBINARY(64) NOT NULL,
  place   BIGINT NOT NULL,
  owner   VARBINARY(128) NOT NULL,
  kind    VARBINARY(16) NOT NULL,
  take    BIGINT NOT NULL,
  permits BIGINT NOT NULL,
  fence   BIGINT NULL,               -- null while it waits
  slots   LONGTEXT CHARACTER SET ascii NOT NULL,  -- ranges of permits: 0-3,7-7
  since   DATETIME(6) NOT NULL,
  until   DATETIME(6) NOT NULL,
  who     VARCHAR(512) CHARACTER SET utf8mb4 NOT NULL,
  note    TEXT CHARACTER SET utf8mb4 NULL,
  PRIMARY KEY (name, token),
  UNIQUE KEY (token)
) ENGINE = InnoDB //
CREATE TABLE IF NOT EXISTS lockkeeper_bound (
  name  VARBINARY(512) NOT NULL PRIMARY KEY,
  fence BIGINT NOT NULL,
  pid   BIGINT NOT NULL,
  who   VARCHAR(512) CHARACTER SET utf8mb4 NOT NULL,
  note  TEXT CHARACTER SET utf8mb4 NULL,
  since DATETIME(6) NOT NULL
) ENGINE = InnoDB //
-- What strategy row locks. A holder writes its number here and never commits it: a dirty read shows
-- it exactly as long as it holds.
CREATE TABLE IF NOT EXISTS lockkeeper_row (
  name VARBINARY(512) NOT NULL PRIMARY KEY,
  pid  BIGINT NULL
) ENGINE = InnoDB //
-- Holders that are asked to give way. Not in the row of their lock: a guarded transaction may have
-- locked that.
CREATE TABLE IF NOT EXISTS lockkeeper_asked (
  name  VARBINARY(512) NOT NULL,
  fence BIGINT NOT NULL,
  at    DATETIME(6) NOT NULL,
  line  TEXT CHARACTER SET utf8mb4 NOT NULL,  -- who asks, and why
  PRIMARY KEY (name, fence)
) ENGINE = InnoDB //
-- The last locks that were broken. Nothing is decided by it.
CREATE TABLE IF NOT EXISTS lockkeeper_broken (
  id   BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY,
  line TEXT CHARACTER SET utf8mb4 NOT NULL  -- when, key, by whom, why, the holders
) ENGINE = InnoDB //
DROP PROCEDURE IF EXISTS lockkeeper_attempt //
-- Enters the queue if it has not yet, and asks whether it is its turn. Times are in microseconds.
-- With a_alone, an uncontended holder may be recorded in the lock's own row; the answer says
-- whether it was. A pause of 0 means that nothing can be decided before a guarded transaction has
-- ended: poll again soon.
CREATE PROCEDURE lockkeeper_attempt(
  a_name VARBINARY(512), a_token VARBINARY(64), a_owner VARBINARY(128), a_kind VARBINARY(16),
  a_take BIGINT, a_permits BIGINT, a_ttl BIGINT, a_stay BIGINT, a_alone BOOLEAN,
  a_who VARCHAR(512) CHARACTER SET utf8mb4, a_note TEXT CHARACTER SET utf8mb4
) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_last, v_next, v_place, v_fence, v_pause, v_slot, v_free, v_found, v_shared, v_ahead BIGINT;
  DECLARE v_holder, v_freed VARBINARY(64);
  DECLARE v_slots LONGTEXT CHARACTER SET ascii DEFAULT '';
  DECLARE v_clash VARCHAR(64) CHARACTER SET utf8mb4;
  DECLARE v_now, v_until, v_lease DATETIME(6);
  DECLARE v_in, v_inside, v_alone BOOLEAN DEFAULT FALSE;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;

  decide: BEGIN
    START TRANSACTION;
    SELECT fence, next, token, until INTO v_last, v_next, v_holder, v_lease
      FROM lockkeeper_lock WHERE name = a_name FOR UPDATE SKIP LOCKED;
    IF v_last IS NULL THEN
      SELECT COUNT(*) INTO v_found FROM lockkeeper_lock WHERE name = a_name;
    END IF;
    IF v_found > 0 THEN
      -- Guarded transactions share the row, and may last. A client that decides has it exclusively,
      -- and is done soon.
      SELECT COUNT(*) INTO v_shared FROM lockkeeper_lock WHERE name = a_name
        /*M! LOCK IN SHARE MODE SKIP LOCKED */ /*!80001 FOR SHARE SKIP LOCKED */;
      IF v_shared > 0 THEN
        SELECT fence, next, token, until INTO v_last, v_next, v_holder, v_lease
          FROM lockkeeper_lock WHERE name = a_name FOR UPDATE SKIP LOCKED;
        IF v_last IS NULL THEN
          ROLLBACK;
          IF a_stay > 0 THEN
            UPDATE lockkeeper_claim SET until = SYSDATE(6) + INTERVAL a_stay MICROSECOND
              WHERE name = a_name AND token = a_token AND fence IS NULL AND until > SYSDATE(6);
          END IF;
          SET v_pause = 0;
          LEAVE decide;
        END IF;
      ELSE
        SELECT fence, next, token, until INTO v_last, v_next, v_holder, v_lease
          FROM lockkeeper_lock WHERE name = a_name FOR UPDATE;
      END IF;
    END IF;
    IF v_last IS NULL THEN
      -- The row is created in a separate transaction: clients that meet at a new key would deadlock
      -- otherwise.
      ROLLBACK;
      SET v_now = SYSDATE(6), v_fence = CAST(UNIX_TIMESTAMP(v_now) * 1000000 AS SIGNED);
      INSERT IGNORE INTO lockkeeper_lock (name, fence, used, token, owner, kind, until, who, note)
        VALUES (a_name, v_fence, v_now, IF(a_alone, a_token, NULL), a_owner, a_kind,
                v_now + INTERVAL a_ttl MICROSECOND, a_who, a_note);
      IF a_alone AND ROW_COUNT() = 1 THEN
        SET v_in = TRUE, v_alone = TRUE;
        LEAVE decide;
      END IF;
      SET v_fence = NULL;
      START TRANSACTION;
      SELECT fence, next, token, until INTO v_last, v_next, v_holder, v_lease
        FROM lockkeeper_lock WHERE name = a_name FOR UPDATE;
    END IF;
    IF v_last IS NULL THEN
      -- The cleanup has just removed it; the caller asks again.
      SIGNAL SQLSTATE '40001' SET MESSAGE_TEXT = 'the lock row was removed meanwhile';
    END IF;
    SET v_now = SYSDATE(6);
    SELECT token INTO v_freed FROM lockkeeper_freed WHERE id = UNHEX(SHA2(a_name, 256));
    IF v_holder = '' THEN
      -- A broken holder may still record that it is free. Until its lease has expired, no other
      -- token can.
      SET v_holder = NULL, a_alone = a_alone AND v_lease <= v_now;
    END IF;
    IF v_holder IS NOT NULL THEN
      -- It may have been renewed, or be about to be: this waits for a renewal in progress, and one
      -- that comes after this read finds, by a later clock, that the lease has expired if it has
      -- expired now.
      SET v_found = NULL;
      SELECT 1 INTO v_found FROM lockkeeper_claim WHERE name = a_name AND token = v_holder FOR UPDATE;
      IF v_found IS NULL AND v_lease > v_now AND NOT v_holder <=> v_freed THEN
        -- A renewal may be making its copy just now; then that one stays.
        INSERT IGNORE INTO lockkeeper_claim
            (name, token, place, owner, kind, take, permits, fence, slots, since, until, who, note)
          SELECT name, token, next, owner, kind, 1, 0, fence, '', used, until, who, note
            FROM lockkeeper_lock WHERE name = a_name;
        SET v_next = v_next + 1;
      END IF;
    END IF;
    -- Usually the queue is empty, and then there is nothing to check.
    SELECT a_kind <> 'semaphore' AND COUNT(*) = 0 INTO v_alone FROM lockkeeper_claim WHERE name = a_name;
    IF v_alone AND a_alone THEN
      SET v_in = TRUE, v_now = SYSDATE(6),
        v_fence = GREATEST(v_last + 1, CAST(UNIX_TIMESTAMP(v_now) * 1000000 AS SIGNED));
      UPDATE lockkeeper_lock SET fence = v_fence, used = v_now, token = a_token, owner = a_owner,
          kind = a_kind, until = v_now + INTERVAL a_ttl MICROSECOND, who = a_who, note = a_note
        WHERE name = a_name;
      COMMIT;
      LEAVE decide;
    END IF;
    SET a_alone = FALSE;
    IF v_holder IS NOT NULL THEN
      UPDATE lockkeeper_lock SET token = NULL, next = v_next WHERE name = a_name;
    END IF;
    IF NOT v_alone THEN
      DELETE FROM lockkeeper_claim WHERE name = a_name AND (until <= v_now OR token = v_freed);
      SELECT place, fence, slots, until INTO v_place, v_fence, v_slots, v_until
        FROM lockkeeper_claim WHERE name = a_name AND token = a_token;
    END IF;
    IF v_place IS NULL AND NOT v_alone THEN
      SELECT IF(kind = 'semaphore', CONCAT('semaphore(', take, ' of ', permits, ')'), kind) INTO v_clash
        FROM lockkeeper_claim
        WHERE name = a_name AND ((kind = 'semaphore') <> (a_kind = 'semaphore') OR permits <> a_permits)
        LIMIT 1;
    END IF;

    -- The same rule as in the library.
    IF v_alone OR v_fence IS NOT NULL THEN
      SET v_in = TRUE;
    ELSEIF a_kind = 'semaphore' THEN
      SELECT COALESCE(SUM(take), 0) + a_take <= a_permits, COUNT(*) INTO v_in, v_ahead
        FROM lockkeeper_claim
        WHERE name = a_name AND token <> a_token AND (fence IS NOT NULL OR place < COALESCE(v_place, v_next));
    ELSE
      -- An owner that already holds does not queue behind waiters that wait for it.
      SELECT COUNT(*) > 0 INTO v_inside FROM lockkeeper_claim
        WHERE name = a_name AND token <> a_token AND fence IS NOT NULL AND owner = a_owner;
      SELECT COUNT(*) = 0, COUNT(*) INTO v_in, v_ahead FROM lockkeeper_claim
        WHERE name = a_name AND token <> a_token AND owner <> a_owner
          AND (fence IS NOT NULL OR (place < COALESCE(v_place, v_next) AND NOT v_inside))
          AND NOT (a_kind = 'read' AND kind = 'read');
    END IF;

    IF v_clash IS NOT NULL THEN
      SET v_in = FALSE;
    ELSEIF v_in THEN
      IF v_fence IS NULL THEN
        SET v_slots = '';
        IF a_kind = 'semaphore' THEN
          BEGIN
            DECLARE v_first, v_final BIGINT;
            DECLARE v_end BOOLEAN DEFAULT FALSE;
            DECLARE taken CURSOR FOR
              SELECT s.first, s.final FROM lockkeeper_claim c
                JOIN JSON_TABLE(
                  IF(c.fence IS NULL, '[]', CONCAT('[[', REPLACE(REPLACE(c.slots, ',', '],['), '-', ','), ']]')),
                  '$[*]' COLUMNS (first BIGINT PATH '$[0]', final BIGINT PATH '$[1]')) s
                WHERE c.name = a_name ORDER BY s.first;
            DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
            -- What is free before each range that is taken, and after the last.
            SET v_slot = 0, v_found = a_take;
            OPEN taken;
            WHILE v_found > 0 DO
              FETCH taken INTO v_first, v_final;
              SET v_free = IF(v_end, v_found, LEAST(v_first - v_slot, v_found));
              IF v_free > 0 THEN
                SET v_slots = CONCAT(v_slots, IF(v_slots = '', '', ','), v_slot, '-', v_slot + v_free - 1),
                  v_found = v_found - v_free;
              END IF;
              SET v_slot = v_final + 1;
            END WHILE;
            CLOSE taken;
          END;
        ELSEIF a_kind <> 'read' AND NOT v_alone THEN
          -- An owner that re-enters through another client gets the fence that it has already.
          SELECT fence INTO v_fence FROM lockkeeper_claim
            WHERE name = a_name AND owner = a_owner AND fence IS NOT NULL AND kind <> 'read' LIMIT 1;
        END IF;
        IF a_kind = 'read' THEN
          SET v_fence = v_last;
        ELSEIF v_fence IS NULL THEN
          SET v_fence = GREATEST(v_last + 1, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED));
        END IF;
      END IF;
      SET v_now = SYSDATE(6);
      UPDATE lockkeeper_lock SET fence = GREATEST(fence, v_fence), used = v_now,
        next = next + IF(v_place IS NULL, 1, 0) WHERE name = a_name;
      INSERT INTO lockkeeper_claim
          (name, token, place, owner, kind, take, permits, fence, slots, since, until, who, note)
        VALUES (a_name, a_token, v_next, a_owner, a_kind, a_take, a_permits, v_fence, v_slots,
                v_now, v_now + INTERVAL a_ttl MICROSECOND, a_who, a_note)
        ON DUPLICATE KEY UPDATE
          since = IF(fence IS NULL, v_now, since), fence = v_fence, slots = v_slots,
          until = v_now + INTERVAL a_ttl MICROSECOND;
    ELSEIF a_stay > 0 AND v_place IS NULL THEN
      INSERT INTO lockkeeper_claim
          (name, token, place, owner, kind, take, permits, fence, slots, since, until, who, note)
        VALUES (a_name, a_token, v_next, a_owner, a_kind, a_take, a_permits, NULL, '',
                v_now, v_now + INTERVAL a_stay MICROSECOND, a_who, a_note);
      UPDATE lockkeeper_lock SET next = v_next + 1 WHERE name = a_name;
    ELSEIF a_stay > 0 AND v_until < v_now + INTERVAL a_stay DIV 2 MICROSECOND THEN
      -- Only now and then: a poll that changes nothing costs no write.
      UPDATE lockkeeper_claim SET until = v_now + INTERVAL a_stay MICROSECOND
        WHERE name = a_name AND token = a_token;
    END IF;
    IF NOT v_in THEN
      SELECT TIMESTAMPDIFF(MICROSECOND, v_now, MIN(until)) INTO v_pause
        FROM lockkeeper_claim WHERE name = a_name AND token <> a_token;
    END IF;
    IF v_in OR (a_stay > 0 AND v_clash IS NULL) THEN
      COMMIT;
    ELSE
      -- A claim that does not stay leaves everything as it was, and does not wait for the disk.
      ROLLBACK;
    END IF;
  END;
  IF v_alone AND a_alone AND v_freed IS NULL THEN
    BEGIN
      -- There is no room: its release will be written to the disk. MySQL fails here all the same,
      -- and the client asks again for a place in the queue.
      DECLARE CONTINUE HANDLER FOR 1114 BEGIN END;
      INSERT IGNORE INTO lockkeeper_freed VALUES
        (UNHEX(SHA2(a_name, 256)), '', SYSDATE(6) + INTERVAL a_ttl MICROSECOND);
    END;
  END IF;
  SELECT v_clash AS clash, IF(v_in, v_fence, NULL) AS fence, v_slots AS slots,
         v_pause AS pause, COALESCE(v_ahead, 0) AS ahead, CAST(v_alone AND a_alone AS SIGNED) AS alone;
END //
DROP PROCEDURE IF EXISTS lockkeeper_renew //
-- Extends living leases, and returns which. They are passed as [{"t": token, "u": microseconds}],
-- with "k": the key in hexadecimal digits, if the holder may be in the lock's own row.
CREATE PROCEDURE lockkeeper_renew(a_leases LONGTEXT CHARACTER SET utf8mb4) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_name VARBINARY(512);
  DECLARE v_token VARBINARY(64);
  DECLARE v_ttl, v_freed, v_holds BIGINT;
  DECLARE v_end BOOLEAN DEFAULT FALSE;
  DECLARE alone CURSOR FOR
    SELECT UNHEX(l.k), CAST(l.t AS BINARY), l.u
      FROM JSON_TABLE(a_leases, '$[*]' COLUMNS (
        t VARCHAR(64) PATH '$.t', u BIGINT PATH '$.u', k VARCHAR(1024) PATH '$.k')) l
      LEFT JOIN lockkeeper_claim c ON c.token = CAST(l.t AS BINARY)
      WHERE l.k IS NOT NULL AND c.token IS NULL;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  -- A holder in the lock's own row is copied to the queue, where it can be extended without a lock
  -- on that row. A client that decides about the key meanwhile waits for our copy, or has looked
  -- for it before we made it; and then the read after the copy, of the mark and then of the row,
  -- finds what that client found.
  OPEN alone;
  FETCH alone INTO v_name, v_token, v_ttl;
  START TRANSACTION;
  WHILE NOT v_end DO
    INSERT IGNORE INTO lockkeeper_claim
        (name, token, place, owner, kind, take, permits, fence, slots, since, until, who, note)
      SELECT name, token, next, owner, kind, 1, 0, fence, '', used,
             SYSDATE(6) + INTERVAL v_ttl MICROSECOND, who, note
        FROM lockkeeper_lock WHERE name = v_name AND token = v_token AND until > SYSDATE(6);
    IF ROW_COUNT() = 1 THEN
      SELECT COUNT(*) INTO v_freed FROM lockkeeper_freed WHERE id = UNHEX(SHA2(v_name, 256)) AND token = v_token;
      SELECT COUNT(*) INTO v_holds FROM lockkeeper_lock
        WHERE name = v_name AND token = v_token AND until > SYSDATE(6);
      IF v_freed = 1 OR v_holds = 0 THEN
        DELETE FROM lockkeeper_claim WHERE name = v_name AND token = v_token;
      END IF;
    END IF;
    FETCH alone INTO v_name, v_token, v_ttl;
  END WHILE;
  CLOSE alone;
  COMMIT;
  START TRANSACTION;
  UPDATE lockkeeper_claim c
    JOIN JSON_TABLE(a_leases, '$[*]' COLUMNS (t VARCHAR(64) PATH '$.t', u BIGINT PATH '$.u')) l
      ON c.token = CAST(l.t AS BINARY)
    SET c.until = SYSDATE(6) + INTERVAL l.u MICROSECOND
    WHERE c.fence IS NOT NULL AND c.until > SYSDATE(6);
  COMMIT;
  SELECT CONVERT(c.token USING utf8mb4) AS token FROM lockkeeper_claim c
    JOIN JSON_TABLE(a_leases, '$[*]' COLUMNS (t VARCHAR(64) PATH '$.t')) l ON c.token = CAST(l.t AS BINARY)
    WHERE c.fence IS NOT NULL AND c.until > SYSDATE(6);
END //
DROP PROCEDURE IF EXISTS lockkeeper_release //
-- Removes a claim from the queue or the lock's own row, whatever its state. Returns 1 if it held,
-- and its lease had not expired. A release notifies no waiters, so there is nothing to decide under
-- the latch.
CREATE PROCEDURE lockkeeper_release(a_name VARBINARY(512), a_token VARBINARY(64)) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_held BOOLEAN;
  DECLARE v_until DATETIME(6);
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SELECT until INTO v_until FROM lockkeeper_lock WHERE name = a_name AND token = a_token;
  SELECT fence IS NOT NULL AND until > SYSDATE(6) INTO v_held
    FROM lockkeeper_claim WHERE name = a_name AND token = a_token;
  SET v_held = COALESCE(v_held, v_until > SYSDATE(6), FALSE);
  IF v_until IS NOT NULL THEN
    -- In memory if there is a row for it. A new one may find no room, which MySQL does not let a
    -- procedure handle.
    UPDATE lockkeeper_freed SET token = a_token, until = v_until WHERE id = UNHEX(SHA2(a_name, 256));
    IF ROW_COUNT() = 0 THEN
      UPDATE lockkeeper_lock SET token = NULL WHERE name = a_name AND token = a_token;
    END IF;
  END IF;
  DELETE FROM lockkeeper_claim WHERE name = a_name AND token = a_token;
  SELECT CAST(v_held AS SIGNED) AS held;
END //
DROP PROCEDURE IF EXISTS lockkeeper_sweep //
-- Removes unused rows, a little at a time: of the keys, the next thousand in their order are
-- scanned, however many there are, and locked ones are skipped. The clock continues a forgotten
-- fence.
CREATE PROCEDURE lockkeeper_sweep() SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_lock, v_bound, v_lock_end, v_bound_end, v_name VARBINARY(512);
  DECLARE v_end BOOLEAN DEFAULT FALSE;
  DECLARE locks CURSOR FOR
    SELECT name FROM lockkeeper_lock WHERE name > v_lock AND name <= v_lock_end
      AND used < SYSDATE(6) - INTERVAL 30 DAY AND (token IS NULL OR until < SYSDATE(6))
      AND NOT EXISTS (SELECT 1 FROM lockkeeper_claim c WHERE c.name = lockkeeper_lock.name)
      FOR UPDATE SKIP LOCKED;
  DECLARE bounds CURSOR FOR
    SELECT name FROM lockkeeper_bound WHERE name > v_bound AND name <= v_bound_end
      AND since < SYSDATE(6) - INTERVAL 30 DAY
      AND NOT EXISTS (SELECT 1 FROM lockkeeper_row r WHERE r.name = lockkeeper_bound.name)
      AND IS_USED_LOCK(CONCAT('lockkeeper:', LEFT(SHA2(CONCAT(DATABASE(), x'00', name), 256), 48))) IS NULL
      FOR UPDATE SKIP LOCKED;
  DECLARE CONTINUE HANDLER FOR NOT FOUND SET v_end = TRUE;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  DELETE FROM lockkeeper_freed WHERE until < SYSDATE(6) LIMIT 2000;
  DELETE FROM lockkeeper_claim WHERE until < SYSDATE(6) - INTERVAL 1 MINUTE LIMIT 100;
  DELETE FROM lockkeeper_asked WHERE at < SYSDATE(6) - INTERVAL 1 DAY LIMIT 100;
  SELECT swept_lock, swept_bound INTO v_lock, v_bound FROM lockkeeper_version LIMIT 1;
  SELECT MAX(name) INTO v_lock_end
    FROM (SELECT name FROM lockkeeper_lock WHERE name > v_lock ORDER BY name LIMIT 1000) n;
  SELECT MAX(name) INTO v_bound_end
    FROM (SELECT name FROM lockkeeper_bound WHERE name > v_bound ORDER BY name LIMIT 1000) n;
  -- After the last comes the first.
  UPDATE lockkeeper_version SET swept_lock = COALESCE(v_lock_end, ''), swept_bound = COALESCE(v_bound_end, '');
  START TRANSACTION;
  OPEN locks;
  FETCH locks INTO v_name;
  WHILE NOT v_end DO
    DELETE FROM lockkeeper_lock WHERE name = v_name;
    FETCH locks INTO v_name;
  END WHILE;
  CLOSE locks;
  SET v_end = FALSE;
  OPEN bounds;
  FETCH bounds INTO v_name;
  WHILE NOT v_end DO
    DELETE FROM lockkeeper_bound WHERE name = v_name;
    FETCH bounds INTO v_name;
  END WHILE;
  CLOSE bounds;
  COMMIT;
END //
DROP PROCEDURE IF EXISTS lockkeeper_break //
-- Breaks a lock, for operators.
CREATE PROCEDURE lockkeeper_break(a_name VARBINARY(512)) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_holder VARBINARY(64);
  DECLARE v_alone BOOLEAN;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  START TRANSACTION;
  SELECT token INTO v_holder FROM lockkeeper_lock WHERE name = a_name FOR UPDATE;
  DELETE FROM lockkeeper_claim WHERE name = a_name AND fence IS NOT NULL;
  -- Its holder may have been moved to the queue, and still assume that it is uncontended.
  UPDATE lockkeeper_lock SET token = '' WHERE name = a_name AND until > SYSDATE(6);
  SET v_alone = ROW_COUNT();
  COMMIT;
  -- A renewal in progress may have copied it to the queue after we looked there.
  DELETE FROM lockkeeper_claim WHERE name = a_name AND token = v_holder;
  IF v_alone THEN
    DELETE FROM lockkeeper_freed WHERE id = UNHEX(SHA2(a_name, 256));
  END IF;
END //
DROP PROCEDURE IF EXISTS lockkeeper_guard //
-- For the user's own transactions: an error (45000, 1644) unless this is still the highest fence of
-- the key. There is no other grant before the transaction ends, so a stale holder cannot write.
CREATE PROCEDURE lockkeeper_guard(a_name VARBINARY(512), a_fence BIGINT) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_last, v_lease, v_bound BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- Only existing rows are locked: others may insert theirs into the gap of a missing one.
  SELECT COUNT(*) INTO v_lease FROM lockkeeper_lock WHERE name = a_name;
  SELECT COUNT(*) INTO v_bound FROM lockkeeper_bound WHERE name = a_name;
  IF v_lease > 0 OR v_bound = 0 THEN
    SELECT fence INTO v_last FROM lockkeeper_lock WHERE name = a_name LOCK IN SHARE MODE;
  END IF;
  IF NOT v_last <=> a_fence AND (v_bound > 0 OR v_lease = 0) THEN
    SELECT fence INTO v_last FROM lockkeeper_bound WHERE name = a_name LOCK IN SHARE MODE;
  END IF;
  IF NOT v_last <=> a_fence THEN
    SIGNAL SQLSTATE '45000' SET MESSAGE_TEXT = 'the fence is stale: the lock was given to somebody else since';
  END IF;
END //
DROP PROCEDURE IF EXISTS lockkeeper_hold //
-- Locks a key's row in a transaction that stays open, and returns 1, or 0 if it is busy.
CREATE PROCEDURE lockkeeper_hold(a_name VARBINARY(512), a_wait BOOLEAN) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_found BIGINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  -- Waited for long enough; the caller asks again.
  DECLARE CONTINUE HANDLER FOR 1205 BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  -- The row is created in a separate transaction, which no other waits for.
  SELECT 1 INTO v_found FROM lockkeeper_row WHERE name = a_name;
  IF v_found = 0 THEN
    INSERT IGNORE INTO lockkeeper_row (name) VALUES (a_name);
  END IF;
  SET v_found = 0;
  START TRANSACTION;
  IF a_wait THEN
    SET SESSION innodb_lock_wait_timeout = 3600;
    SELECT 1 INTO v_found FROM lockkeeper_row WHERE name = a_name FOR UPDATE;
  ELSE
    SELECT 1 INTO v_found FROM lockkeeper_row WHERE name = a_name FOR UPDATE SKIP LOCKED;
  END IF;
  IF v_found THEN
    UPDATE lockkeeper_row SET pid = CONNECTION_ID() WHERE name = a_name;
  ELSE
    ROLLBACK;
  END IF;
  SELECT v_found AS held;
END //
DROP PROCEDURE IF EXISTS lockkeeper_bind //
-- The fence of a row that connection a_pid holds, committed before the lock counts as acquired;
-- null if that connection no longer holds it, and 0 if a guarded transaction has not ended. The
-- check comes after our own write, at which a connection that gets the row after that check has to
-- wait, and so gets a higher fence.
CREATE PROCEDURE lockkeeper_bind(
  a_name VARBINARY(512), a_pid BIGINT, a_who VARCHAR(512) CHARACTER SET utf8mb4,
  a_note TEXT CHARACTER SET utf8mb4
) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_fence, v_holds BIGINT;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; RESIGNAL; END;
  SET TRANSACTION ISOLATION LEVEL READ UNCOMMITTED;
  START TRANSACTION;
  SELECT 0 INTO v_fence FROM lockkeeper_bound WHERE name = a_name;
  SELECT NULL INTO v_fence FROM lockkeeper_bound WHERE name = a_name FOR UPDATE SKIP LOCKED;
  IF v_fence = 0 THEN
    ROLLBACK;
  ELSE
    INSERT INTO lockkeeper_bound (name, fence, pid, who, note, since)
      VALUES (a_name, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED), a_pid, a_who, a_note, SYSDATE(6))
      ON DUPLICATE KEY UPDATE
        fence = GREATEST(fence + 1, CAST(UNIX_TIMESTAMP(SYSDATE(6)) * 1000000 AS SIGNED)),
        pid = a_pid, who = a_who, note = a_note, since = SYSDATE(6);
    SELECT MAX(b.fence), COUNT(r.pid) INTO v_fence, v_holds
      FROM lockkeeper_bound b LEFT JOIN lockkeeper_row r ON r.name = b.name AND r.pid = a_pid
      WHERE b.name = a_name;
    IF v_holds = 0 THEN
      SET v_fence = NULL;
      ROLLBACK;
    ELSE
      COMMIT;
    END IF;
  END IF;
  SELECT v_fence AS fence;
END //
DROP PROCEDURE IF EXISTS lockkeeper_unhold //
CREATE PROCEDURE lockkeeper_unhold(a_name VARBINARY(512)) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_held BIGINT DEFAULT 0;
  DECLARE CONTINUE HANDLER FOR NOT FOUND BEGIN END;
  SELECT 1 INTO v_held FROM lockkeeper_row WHERE name = a_name AND pid = CONNECTION_ID();
  ROLLBACK;
  SELECT v_held AS held;
END //
DROP PROCEDURE IF EXISTS lockkeeper_end //
-- Ends another connection, and waits until its locks are released, for at most five seconds. A
-- restarted server numbers its connections from the start: a_host distinguishes them, if it is
-- given.
CREATE PROCEDURE lockkeeper_end(a_pid BIGINT, a_host VARCHAR(255)) SQL SECURITY INVOKER MODIFIES SQL DATA
BEGIN
  DECLARE v_tries BIGINT DEFAULT 0;
  DECLARE v_there BIGINT;
  -- There is no such connection: that is what was wanted.
  DECLARE EXIT HANDLER FOR 1094 BEGIN END;
  -- MySQL cannot read this list while a connection runs a statement with four-byte characters.
  DECLARE CONTINUE HANDLER FOR 3854
    SELECT COUNT(*) INTO v_there FROM performance_schema.processlist
      WHERE id = a_pid AND host = COALESCE(a_host, host);
  SELECT COUNT(*) INTO v_there FROM information_schema.processlist
    WHERE id = a_pid AND host = COALESCE(a_host, host);
  IF v_there > 0 THEN
    KILL a_pid;
  END IF;
  WHILE v_tries < 1000 AND v_there > 0 DO
    SELECT COUNT(*) INTO v_there FROM information_schema.processlist WHERE id = a_pid;
    DO SLEEP(IF(v_there > 0, 0.005, 0));
    SET v_tries = v_tries + 1;
  END WHILE;
END //
-- Besides the version, the progress of the cleanup.
CREATE TABLE IF NOT EXISTS lockkeeper_version (
  version     INT NOT NULL PRIMARY KEY,
  swept_lock  VARBINARY(512) NOT NULL DEFAULT '',
  swept_bound VARBINARY(512) NOT NULL DEFAULT ''
) ENGINE = InnoDB //
INSERT IGNORE INTO lockkeeper_version (version) VALUES (3) //
DELETE FROM lockkeeper_version WHERE version < 3 //
DELIMITER ;
