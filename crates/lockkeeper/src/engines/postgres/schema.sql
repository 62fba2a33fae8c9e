-- lockkeeper's tables and functions, version 3. Running this again changes nothing. Run over an
-- earlier version, it upgrades that and keeps the data: stop the clients of that version first.
--
-- One row of lockkeeper_lock per key is the latch under which everything about that key is decided.
-- It also has the key's fence, and the holder as long as the lock is uncontended: acquiring and
-- releasing an uncontended lock changes this row and nothing else. As soon as the lock is
-- contended, all claims are in the queue, lockkeeper_claim: holders and waiters, in order. Time is
-- clock_timestamp(), read after the latch is held: now() would be older than the wait for it.
--
-- Only grants take the latch FOR UPDATE: lockkeeper_guard blocks just those.

-- All or nothing, even if a client continues after an error.
BEGIN;

DO $$
DECLARE
  present integer;
  old regprocedure;
BEGIN
  IF to_regproc('lockkeeper_version') IS NULL THEN
    RETURN;
  END IF;
  present := lockkeeper_version();
  IF present > 3 THEN
    RAISE EXCEPTION 'lockkeeper''s tables have version % here, and this is version 3', present
      USING HINT = 'Use the newer lockkeeper, which made them.';
  ELSIF present < 3 THEN
    ALTER TABLE lockkeeper_lock
      ADD COLUMN IF NOT EXISTS token text COLLATE "C",
      ADD COLUMN IF NOT EXISTS owner text COLLATE "C",
      ADD COLUMN IF NOT EXISTS kind text COLLATE "C",
      ADD COLUMN IF NOT EXISTS since timestamptz NOT NULL DEFAULT clock_timestamp(),
      ADD COLUMN IF NOT EXISTS until timestamptz,
      ADD COLUMN IF NOT EXISTS who text,
      ADD COLUMN IF NOT EXISTS note text;
    -- The next grant of each key starts a range.
    ALTER TABLE IF EXISTS lockkeeper_last ADD COLUMN IF NOT EXISTS range_end bigint NOT NULL DEFAULT 0;
    -- The result type of a function cannot be replaced. lockkeeper_guard returns what it always
    -- did, and objects of users may depend on it.
    FOR old IN
      SELECT p.oid::regprocedure FROM pg_proc p JOIN pg_proc v ON v.oid = to_regproc('lockkeeper_version')
      WHERE p.pronamespace = v.pronamespace AND p.proname LIKE 'lockkeeper\_%'
        AND p.proname <> 'lockkeeper_guard'
    LOOP
      EXECUTE 'DROP FUNCTION ' || old;
    END LOOP;
  END IF;
END $$;

CREATE TABLE IF NOT EXISTS lockkeeper_lock (
  key   text COLLATE "C" PRIMARY KEY,
  fence bigint NOT NULL,
  token text COLLATE "C",  -- the uncontended holder, '' if the lock is free, null if the queue decides
  owner text COLLATE "C",
  kind  text COLLATE "C",
  since timestamptz NOT NULL DEFAULT clock_timestamp(),
  until timestamptz,
  who   text,
  note  text
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS lockkeeper_claim (
  key    text COLLATE "C" NOT NULL,
  token  text COLLATE "C" NOT NULL,
  place  bigint GENERATED ALWAYS AS IDENTITY,
  owner  text COLLATE "C" NOT NULL,
  kind   text COLLATE "C" NOT NULL,
  take   bigint NOT NULL,
  permits bigint NOT NULL,
  fence  bigint,            -- null while it waits
  slots  bigint[] NOT NULL DEFAULT '{}',
  since  timestamptz NOT NULL,
  until  timestamptz NOT NULL,
  wake   text NOT NULL,     -- the channel of the waiting client
  who    text NOT NULL,
  note   text,
  PRIMARY KEY (key, token)
) WITH (fillfactor = 70);

CREATE TABLE IF NOT EXISTS lockkeeper_bound (
  key   text COLLATE "C" PRIMARY KEY,
  id    bigint NOT NULL UNIQUE,  -- two keys never share an advisory lock: the second is refused
  fence bigint NOT NULL,         -- no fence above this one was granted
  used  timestamptz NOT NULL DEFAULT clock_timestamp()
) WITH (fillfactor = 70);

-- Unlogged: a write does not wait for the disk, and a crash empties the table. Then
-- lockkeeper_bound has the value to continue from.
CREATE UNLOGGED TABLE IF NOT EXISTS lockkeeper_last (
  key   text COLLATE "C" PRIMARY KEY,
  fence bigint NOT NULL,         -- the last one granted
  pid   integer NOT NULL,
  who   text NOT NULL,
  note  text,
  since timestamptz NOT NULL,
  range_end bigint NOT NULL      -- the last one of its range: lockkeeper_bound has this or a higher one
) WITH (fillfactor = 70);

-- What strategy row locks. Nothing is ever written to a row.
CREATE TABLE IF NOT EXISTS lockkeeper_row (
  key text COLLATE "C" PRIMARY KEY
);

-- Holders that are asked to give way. Not in the row of their lock: a guarded transaction may have
-- locked that.
CREATE TABLE IF NOT EXISTS lockkeeper_asked (
  key   text COLLATE "C" NOT NULL,
  fence bigint NOT NULL,
  at    timestamptz NOT NULL DEFAULT clock_timestamp(),
  line  text NOT NULL,            -- who asks, and why
  PRIMARY KEY (key, fence)
);

-- The last locks that were broken. Nothing is decided by it.
CREATE TABLE IF NOT EXISTS lockkeeper_broken (
  id   bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  line text NOT NULL             -- when, key, by whom, why, the holders
);

CREATE OR REPLACE FUNCTION lockkeeper_micros() RETURNS bigint LANGUAGE sql VOLATILE AS $$
  SELECT floor(extract(epoch FROM clock_timestamp()) * 1000000)::bigint
$$;

-- Whether a claim at this place in the queue is granted. The same rule as in the library.
CREATE OR REPLACE FUNCTION lockkeeper_turn(
  a_key text, a_token text, a_place bigint, a_owner text, a_kind text, a_take bigint, a_permits bigint
) RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  IF a_kind = 'semaphore' THEN
    RETURN (
      SELECT coalesce(sum(c.take), 0) + a_take <= a_permits FROM lockkeeper_claim c
      WHERE c.key = a_key AND c.token <> a_token AND (c.fence IS NOT NULL OR c.place < a_place));
  END IF;
  -- An owner that already holds does not queue behind waiters that wait for it.
  RETURN NOT EXISTS (
    SELECT FROM lockkeeper_claim c
    WHERE c.key = a_key AND c.token <> a_token AND c.owner <> a_owner
      AND NOT (a_kind = 'read' AND c.kind = 'read')
      AND (c.fence IS NOT NULL OR (c.place < a_place AND NOT EXISTS (
        SELECT FROM lockkeeper_claim i
        WHERE i.key = a_key AND i.token <> a_token AND i.fence IS NOT NULL AND i.owner = a_owner))));
END $$;

-- Notifies the claims whose turn it is. They are a run at the front of the queue. A session that
-- found the notification queue full sets lockkeeper.silent, and then waiters poll.
CREATE OR REPLACE FUNCTION lockkeeper_wake(a_key text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  c lockkeeper_claim;
BEGIN
  IF current_setting('lockkeeper.silent', true) = 'on' THEN
    RETURN;
  END IF;
  FOR c IN SELECT * FROM lockkeeper_claim w WHERE w.key = a_key AND w.fence IS NULL ORDER BY w.place LOOP
    EXIT WHEN NOT lockkeeper_turn(c.key, c.token, c.place, c.owner, c.kind, c.take, c.permits);
    PERFORM pg_notify(c.wake, c.token);
  END LOOP;
END $$;

-- All claims, queued or uncontended, and the last fence of each key.
CREATE OR REPLACE VIEW lockkeeper_all AS
  SELECT c.key, c.place, c.owner, c.kind, c.take, c.permits, c.fence, c.slots, c.since, c.until, c.who, c.note,
         l.fence AS last
    FROM lockkeeper_claim c LEFT JOIN lockkeeper_lock l USING (key)
  UNION ALL
  SELECT l.key, 0, l.owner, l.kind, 1, 0, l.fence, '{}', l.since, l.until, l.who, l.note, l.fence
    FROM lockkeeper_lock l WHERE l.token <> '';

-- Enters the queue if it has not yet, and asks whether it is its turn. Times are in microseconds; a
-- pause of 0 means that it is, except for a guarded transaction that has not ended: poll again
-- soon.
CREATE OR REPLACE FUNCTION lockkeeper_attempt(
  a_key text, a_token text, a_owner text, a_kind text, a_take bigint, a_permits bigint,
  a_ttl bigint, a_stay bigint, a_wake text, a_who text, a_note text,
  OUT clash text, OUT granted boolean, OUT fence bigint, OUT slots bigint[], OUT pause bigint
) LANGUAGE plpgsql AS $$
DECLARE
  latch lockkeeper_lock;
  mine lockkeeper_claim;
  others bigint;
  guarded boolean := false;
  instant timestamptz;
  -- An unrelated transaction may block this; the caller asks again.
  patience text := set_config('lock_timeout', '5000', true);
BEGIN
  LOOP
    -- A guarded transaction does not keep claims from queueing, only from being granted.
    SELECT * INTO latch FROM lockkeeper_lock l WHERE l.key = a_key FOR NO KEY UPDATE;
    EXIT WHEN FOUND;
    INSERT INTO lockkeeper_lock (key, fence) VALUES (a_key, lockkeeper_micros()) ON CONFLICT DO NOTHING;
  END LOOP;
  instant := clock_timestamp();
  IF latch.token <> '' AND latch.until > instant THEN
    -- A single attempt does not create a queue.
    IF a_stay = 0 AND a_kind <> 'semaphore' AND latch.token <> a_token AND latch.owner <> a_owner
        AND NOT (a_kind = 'read' AND latch.kind = 'read') THEN
      granted := false;
      pause := greatest(1, extract(epoch FROM latch.until - instant) * 1000000);
      PERFORM set_config('synchronous_commit', 'off', true);
      RETURN;
    END IF;
    -- The uncontended holder moves to the queue, which others can join.
    INSERT INTO lockkeeper_claim (key, token, owner, kind, take, permits, fence, since, until, wake, who, note)
      VALUES (a_key, latch.token, latch.owner, latch.kind, 1, 0, latch.fence, latch.since, latch.until, '',
              latch.who, latch.note);
  END IF;
  -- This waits for a renewal in progress, and may find that the claim is alive: so claims are
  -- counted after it.
  DELETE FROM lockkeeper_claim c WHERE c.key = a_key AND c.until <= instant;
  IF FOUND THEN
    PERFORM lockkeeper_wake(a_key);
  END IF;
  SELECT count(*) INTO others FROM lockkeeper_claim c WHERE c.key = a_key;
  IF others > 0 THEN
    SELECT * INTO mine FROM lockkeeper_claim c WHERE c.key = a_key AND c.token = a_token;
  END IF;
  IF mine.fence IS NULL THEN
    -- No other client decides about this key now, so the lock on the row is that of a guarded
    -- transaction.
    PERFORM FROM lockkeeper_lock l WHERE l.key = a_key FOR UPDATE SKIP LOCKED;
    guarded := NOT FOUND;
  END IF;
  IF others = 0 AND guarded AND a_stay = 0 THEN
    granted := false;
    pause := 0;
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN;
  ELSIF others = 0 AND NOT guarded AND a_kind <> 'semaphore' THEN
    UPDATE lockkeeper_lock l
      SET token = a_token, owner = a_owner, kind = a_kind, since = clock_timestamp(),
          until = clock_timestamp() + a_ttl * interval '1 microsecond', who = a_who, note = a_note,
          fence = CASE a_kind WHEN 'read' THEN l.fence ELSE greatest(l.fence + 1, lockkeeper_micros()) END
      WHERE l.key = a_key RETURNING true, l.fence INTO granted, fence;
    RETURN;
  END IF;
  IF latch.token IS NOT NULL THEN
    UPDATE lockkeeper_lock l SET token = NULL, until = NULL WHERE l.key = a_key;
  END IF;
  IF mine.token IS NULL THEN
    SELECT c.kind || CASE c.kind WHEN 'semaphore' THEN '(' || c.take || ' of ' || c.permits || ')' ELSE '' END
      INTO clash FROM lockkeeper_claim c
      WHERE c.key = a_key AND ((c.kind = 'semaphore') <> (a_kind = 'semaphore') OR c.permits <> a_permits)
      LIMIT 1;
    IF clash IS NOT NULL THEN
      PERFORM set_config('synchronous_commit', 'off', true);
      RETURN;
    END IF;
  END IF;

  granted := mine.fence IS NOT NULL;
  IF NOT granted THEN
    granted := lockkeeper_turn(
      a_key, a_token, coalesce(mine.place, 9223372036854775807), a_owner, a_kind, a_take, a_permits);
    guarded := guarded AND granted;
    granted := granted AND NOT guarded;
  END IF;
  IF NOT granted THEN
    IF a_stay = 0 THEN
      DELETE FROM lockkeeper_claim c WHERE c.key = a_key AND c.token = a_token;
    ELSIF mine.token IS NULL THEN
      INSERT INTO lockkeeper_claim (key, token, owner, kind, take, permits, since, until, wake, who, note)
        VALUES (a_key, a_token, a_owner, a_kind, a_take, a_permits,
                instant, instant + a_stay * interval '1 microsecond', a_wake, a_who, a_note);
    ELSE
      UPDATE lockkeeper_claim c SET until = instant + a_stay * interval '1 microsecond'
        WHERE c.key = a_key AND c.token = a_token;
    END IF;
    IF guarded THEN
      pause := 0;
    ELSE
      SELECT greatest(1, extract(epoch FROM min(c.until) - instant) * 1000000)::bigint INTO pause
        FROM lockkeeper_claim c WHERE c.key = a_key AND c.token <> a_token;
    END IF;
    -- Losing a place in the queue costs a place, not a lock: it need not be durable.
    PERFORM set_config('synchronous_commit', 'off', true);
    RETURN;
  END IF;

  fence := mine.fence;
  slots := coalesce(mine.slots, '{}');
  IF fence IS NULL THEN
    IF a_kind = 'semaphore' THEN
      WITH taken AS (
        SELECT unnest(c.slots) AS slot FROM lockkeeper_claim c WHERE c.key = a_key AND c.fence IS NOT NULL
      ), free AS (
        SELECT s FROM generate_series(0, (SELECT count(*) FROM taken) + a_take - 1) s
        WHERE s NOT IN (SELECT slot FROM taken) ORDER BY s LIMIT a_take
      ) SELECT array_agg(s) INTO slots FROM free;
    ELSIF a_kind <> 'read' AND a_owner <> a_token THEN
      -- An owner that re-enters through another client gets the fence that it has already.
      SELECT c.fence INTO fence FROM lockkeeper_claim c
        WHERE c.key = a_key AND c.owner = a_owner AND c.fence IS NOT NULL AND c.kind <> 'read' LIMIT 1;
    END IF;
    IF a_kind = 'read' THEN
      fence := latch.fence;
    ELSIF fence IS NULL THEN
      fence := greatest(latch.fence + 1, lockkeeper_micros());
    END IF;
    UPDATE lockkeeper_lock l
      SET fence = greatest(l.fence, lockkeeper_attempt.fence), since = instant
      WHERE l.key = a_key;
  END IF;
  instant := clock_timestamp();
  IF mine.token IS NULL THEN
    INSERT INTO lockkeeper_claim
        (key, token, owner, kind, take, permits, fence, slots, since, until, wake, who, note)
      VALUES (a_key, a_token, a_owner, a_kind, a_take, a_permits, fence, slots,
              instant, instant + a_ttl * interval '1 microsecond', a_wake, a_who, a_note);
  ELSE
    UPDATE lockkeeper_claim c
      SET fence = lockkeeper_attempt.fence, slots = lockkeeper_attempt.slots,
          since = CASE WHEN mine.fence IS NULL THEN instant ELSE c.since END,
          until = instant + a_ttl * interval '1 microsecond'
      WHERE c.key = a_key AND c.token = a_token;
  END IF;
END $$;

-- Extends living leases, and returns which. An uncontended holder may be moved to the queue
-- meanwhile, but never back: so the queue comes last.
CREATE OR REPLACE FUNCTION lockkeeper_renew(a_keys text[], a_tokens text[], a_ttls bigint[])
RETURNS SETOF text LANGUAGE plpgsql AS $$
BEGIN
  RETURN QUERY UPDATE lockkeeper_lock l SET until = clock_timestamp() + a.ttl * interval '1 microsecond'
    FROM unnest(a_keys, a_tokens, a_ttls) AS a (key, token, ttl)
    WHERE l.key = a.key AND l.token = a.token AND l.until > clock_timestamp()
    RETURNING l.token;
  RETURN QUERY UPDATE lockkeeper_claim c SET until = clock_timestamp() + a.ttl * interval '1 microsecond'
    FROM unnest(a_keys, a_tokens, a_ttls) AS a (key, token, ttl)
    WHERE c.key = a.key AND c.token = a.token AND c.fence IS NOT NULL AND c.until > clock_timestamp()
    RETURNING c.token;
END $$;

-- The percentage of this table that a thousand pages are.
CREATE OR REPLACE FUNCTION lockkeeper_part(a_table regclass) RETURNS real LANGUAGE sql STABLE AS $$
  SELECT least(100, 100000.0 / greatest(relpages, 1))::real FROM pg_class WHERE oid = a_table
$$;

-- Removes unused rows, a little at a time, without waiting: of the keys, a thousand random pages
-- are scanned, however many there are.
CREATE OR REPLACE FUNCTION lockkeeper_sweep() RETURNS void LANGUAGE sql AS $$
  DELETE FROM lockkeeper_claim WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM lockkeeper_claim WHERE until < clock_timestamp() - interval '1 minute'
    LIMIT 100 FOR UPDATE SKIP LOCKED));
  DELETE FROM lockkeeper_asked WHERE ctid = ANY (ARRAY(
    SELECT ctid FROM lockkeeper_asked WHERE at < clock_timestamp() - interval '1 day'
    LIMIT 100 FOR UPDATE SKIP LOCKED));
  -- The clock continues a fence that is forgotten.
  DELETE FROM lockkeeper_lock WHERE ctid = ANY (ARRAY(
    SELECT l.ctid FROM lockkeeper_lock l TABLESAMPLE SYSTEM (lockkeeper_part('lockkeeper_lock'))
    WHERE l.since < clock_timestamp() - interval '30 days'
      AND (l.token = '' OR l.until < clock_timestamp()
        OR (l.token IS NULL AND NOT EXISTS (SELECT FROM lockkeeper_claim c WHERE c.key = l.key)))
    LIMIT 1000 FOR UPDATE SKIP LOCKED));
  -- A row that is held is locked, and skipped.
  DELETE FROM lockkeeper_row WHERE ctid = ANY (ARRAY(
    SELECT r.ctid FROM lockkeeper_row r TABLESAMPLE SYSTEM (lockkeeper_part('lockkeeper_row'))
      JOIN lockkeeper_bound b USING (key) LEFT JOIN lockkeeper_last l USING (key)
    WHERE greatest(b.used, l.since) < clock_timestamp() - interval '30 days'
    LIMIT 1000 FOR UPDATE OF r SKIP LOCKED));
  WITH idle AS (
    DELETE FROM lockkeeper_bound WHERE ctid = ANY (ARRAY(
      SELECT b.ctid FROM lockkeeper_bound b TABLESAMPLE SYSTEM (lockkeeper_part('lockkeeper_bound'))
        LEFT JOIN lockkeeper_last t USING (key)
      WHERE greatest(b.used, t.since) < clock_timestamp() - interval '30 days'
        AND NOT EXISTS (SELECT FROM lockkeeper_row r WHERE r.key = b.key)
        AND NOT EXISTS (SELECT FROM pg_locks l WHERE l.locktype = 'advisory' AND l.objsubid = 1
          AND (l.classid::bigint << 32) | l.objid::bigint = b.id)
      LIMIT 1000 FOR UPDATE OF b SKIP LOCKED))
    RETURNING key
  ) DELETE FROM lockkeeper_last USING idle WHERE lockkeeper_last.key = idle.key;
$$;

-- Removes a claim from the queue. True if it held, and its lease had not expired.
CREATE OR REPLACE FUNCTION lockkeeper_release(a_key text, a_token text) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  held boolean;
  -- A release that is lost in a crash costs the rest of the lease, so it need not be durable.
  haste text := set_config('synchronous_commit', 'off', true);
BEGIN
  PERFORM FROM lockkeeper_lock l WHERE l.key = a_key FOR NO KEY UPDATE;
  UPDATE lockkeeper_lock l SET token = '' WHERE l.key = a_key AND l.token = a_token
    RETURNING l.until > clock_timestamp() INTO held;
  IF NOT FOUND THEN
    DELETE FROM lockkeeper_claim c WHERE c.key = a_key AND c.token = a_token
      RETURNING c.fence IS NOT NULL AND c.until > clock_timestamp() INTO held;
    IF FOUND THEN
      PERFORM lockkeeper_wake(a_key);
    END IF;
    UPDATE lockkeeper_lock l SET token = '' WHERE l.key = a_key AND l.token IS NULL
      AND NOT EXISTS (SELECT FROM lockkeeper_claim c WHERE c.key = a_key);
  END IF;
  RETURN coalesce(held, false);
END $$;

-- Breaks a lock, for operators.
CREATE OR REPLACE FUNCTION lockkeeper_break(a_key text) RETURNS SETOF lockkeeper_all LANGUAGE plpgsql AS $$
BEGIN
  PERFORM FROM lockkeeper_lock l WHERE l.key = a_key FOR NO KEY UPDATE;
  RETURN QUERY SELECT * FROM lockkeeper_all a
    WHERE a.key = a_key AND a.fence IS NOT NULL AND a.until > clock_timestamp();
  UPDATE lockkeeper_lock l SET token = '' WHERE l.key = a_key AND l.token <> '';
  DELETE FROM lockkeeper_claim c WHERE c.key = a_key AND c.fence IS NOT NULL;
  PERFORM lockkeeper_wake(a_key);
END $$;

-- For the user's own transactions: true if this is still the highest fence of the key, otherwise an
-- error (LK001). There is no other grant before the transaction ends, so a stale holder cannot
-- write.
CREATE OR REPLACE FUNCTION lockkeeper_guard(a_key text, a_fence bigint) RETURNS boolean LANGUAGE plpgsql AS $$
DECLARE
  last bigint;
BEGIN
  SELECT l.fence INTO last FROM lockkeeper_lock l WHERE l.key = a_key FOR KEY SHARE;
  IF last IS DISTINCT FROM a_fence THEN
    SELECT l.fence INTO last FROM lockkeeper_last l WHERE l.key = a_key FOR SHARE;
  END IF;
  IF last IS DISTINCT FROM a_fence THEN
    RAISE EXCEPTION 'fence % of lock "%" is stale', a_fence, a_key
      USING ERRCODE = 'LK001', DETAIL = 'The lock was given to somebody else since.';
  END IF;
  RETURN true;
END $$;

-- The fence of a lock that a connection holds. Fences are taken from a range of a million, whose
-- end is committed before the first of them is used: other grants do not wait for the disk. After a
-- crash lockkeeper_last is empty, and the next range starts above the end of the previous one. Null
-- as long as a transaction that the last fence guards has not ended.
CREATE OR REPLACE FUNCTION lockkeeper_bind(
  a_key text, a_pid integer, a_read boolean, a_who text, a_note text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  result bigint;
BEGIN
  IF a_read THEN
    SELECT coalesce(l.fence, b.fence) INTO result
      FROM lockkeeper_bound b LEFT JOIN lockkeeper_last l USING (key) WHERE b.key = a_key;
    IF NOT FOUND THEN
      INSERT INTO lockkeeper_bound AS b (key, id, fence) VALUES (a_key, lockkeeper_id(a_key), lockkeeper_micros())
        ON CONFLICT (key) DO UPDATE SET used = clock_timestamp() RETURNING b.fence INTO result;
    END IF;
    RETURN result;
  END IF;
  PERFORM FROM lockkeeper_last l WHERE l.key = a_key FOR NO KEY UPDATE SKIP LOCKED;
  IF NOT FOUND AND EXISTS (SELECT FROM lockkeeper_last l WHERE l.key = a_key) THEN
    RETURN NULL;
  END IF;
  UPDATE lockkeeper_last l
    SET fence = l.fence + 1, pid = a_pid, who = a_who, note = a_note, since = clock_timestamp()
    WHERE l.key = a_key AND l.fence < l.range_end
    RETURNING l.fence INTO result;
  IF FOUND THEN
    RETURN result;
  END IF;
  -- Of two that arrive here at once, the second continues from the end of the first one's range.
  INSERT INTO lockkeeper_bound AS b (key, id, fence)
    VALUES (a_key, lockkeeper_id(a_key), lockkeeper_micros() + 1000000)
    ON CONFLICT (key) DO UPDATE
      SET fence = greatest(b.fence, lockkeeper_micros()) + 1000000, used = clock_timestamp()
    RETURNING b.fence - 999999 INTO result;
  INSERT INTO lockkeeper_last (key, fence, pid, who, note, since, range_end)
    VALUES (a_key, result, a_pid, a_who, a_note, clock_timestamp(), result + 999999)
    ON CONFLICT (key) DO UPDATE
      SET fence = result, pid = a_pid, who = a_who, note = a_note, since = clock_timestamp(),
          range_end = result + 999999;
  RETURN result;
END $$;

-- The number of a key among advisory locks.
CREATE OR REPLACE FUNCTION lockkeeper_id(a_key text) RETURNS bigint LANGUAGE sql IMMUTABLE AS $$
  SELECT ('x' || substr(encode(sha256(convert_to('lockkeeper:' || a_key, 'UTF8')), 'hex'), 1, 16))::bit(64)::bigint
$$;

-- Acquires an advisory lock for this session, and returns its fence; null if it is busy and not
-- waited for, 0 if it was acquired and its fence has to wait for a guarded transaction. The server
-- ends a session that is silent for a_ttl milliseconds, and frees the lock.
CREATE OR REPLACE FUNCTION lockkeeper_advise(
  a_key text, a_read boolean, a_wait boolean, a_ttl integer, a_who text, a_note text
) RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  number bigint := lockkeeper_id(a_key);
BEGIN
  PERFORM set_config('idle_session_timeout', a_ttl::text, false);
  IF a_read AND a_wait THEN
    PERFORM pg_advisory_lock_shared(number);
  ELSIF a_wait THEN
    PERFORM pg_advisory_lock(number);
  ELSIF a_read AND NOT pg_try_advisory_lock_shared(number) THEN
    RETURN NULL;
  ELSIF NOT a_read AND NOT pg_try_advisory_lock(number) THEN
    RETURN NULL;
  END IF;
  RETURN coalesce(lockkeeper_bind(a_key, pg_backend_pid(), a_read, a_who, a_note), 0);
END $$;

-- Locks a key's row in the open transaction: true, or false if it is busy and not waited for, or
-- null if the row has to be created first. The server ends a session that is silent for a_ttl
-- milliseconds.
CREATE OR REPLACE FUNCTION lockkeeper_hold(a_key text, a_wait boolean, a_ttl integer)
RETURNS boolean LANGUAGE plpgsql AS $$
BEGIN
  PERFORM set_config('idle_in_transaction_session_timeout', a_ttl::text, true);
  IF a_wait THEN
    PERFORM FROM lockkeeper_row r WHERE r.key = a_key FOR UPDATE;
  ELSE
    PERFORM FROM lockkeeper_row r WHERE r.key = a_key FOR UPDATE SKIP LOCKED;
  END IF;
  IF FOUND THEN
    RETURN true;
  ELSIF EXISTS (SELECT FROM lockkeeper_row r WHERE r.key = a_key) THEN
    RETURN false;
  END IF;
  RETURN NULL;
END $$;

-- The fence of a key whose row another session, a_pid, holds in its open transaction; null if it no
-- longer does, and 0 if a guarded transaction has not ended. The check comes after the latch in
-- lockkeeper_bind, so a session that gets the row after that check waits at the latch, and gets a
-- higher fence.
CREATE OR REPLACE FUNCTION lockkeeper_mark(a_key text, a_pid integer, a_who text, a_note text)
RETURNS bigint LANGUAGE plpgsql AS $$
DECLARE
  result bigint := lockkeeper_bind(a_key, a_pid, false, a_who, a_note);
BEGIN
  IF result IS NULL THEN
    RETURN 0;
  END IF;
  PERFORM FROM lockkeeper_row r
    JOIN pg_locks l ON l.locktype = 'transactionid' AND l.transactionid = r.xmax
    WHERE r.key = a_key AND l.pid = a_pid AND l.granted;
  RETURN CASE WHEN FOUND THEN result END;
END $$;

CREATE OR REPLACE FUNCTION lockkeeper_version() RETURNS integer LANGUAGE sql IMMUTABLE AS 'SELECT 3';

COMMIT;
