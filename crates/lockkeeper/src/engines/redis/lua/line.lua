-- The line of those who wait for a mutex that is not fair. Other scripts are appended to this text.
--
-- `line` is a list of the claims that wait, the first of which is next. `waiters` has for each of them, with
-- tabs between: the time until which it counts, by the server's clock; which of its heartbeats that was;
-- for how many milliseconds the lock is handed to it; and its record, which names its field in the lock.
-- Its client listens to a channel that ends with the first 36 characters of the claim.

-- What is kept of a line whose clients all died goes after this many milliseconds.
local KEPT = '60000'

local function milliseconds(clock)
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- Tells a waiter something. False if nobody listens: its client is gone, and will join again if it is not.
local function tell(publish, wake, claim, what)
  return redis.call(publish, wake .. string.sub(claim, 1, 36), claim .. ' ' .. what) > 0
end

-- The first waiter that is alive.
local function first_waiter(line, waiters, now)
  while true do
    local head = redis.call('lindex', line, 0)
    local place = head and redis.call('hget', waiters, head)
    if not head or place and tonumber(string.match(place, '^%d+')) > now then
      return head
    end
    redis.call('lpop', line)
    redis.call('hdel', waiters, head)
  end
end

-- Tells the first waiter that is there to ask, or something else. Returns it.
local function wake_first(line, waiters, publish, wake, now, what)
  while true do
    local head = first_waiter(line, waiters, now)
    if not head or tell(publish, wake, head, what or 'ask') then
      return head
    end
    redis.call('lpop', line)
    redis.call('hdel', waiters, head)
  end
end

-- Whether a free lock is this claim's to take. If it is another's, that one is told.
local function is_turn(line, waiters, claim, publish, wake)
  if redis.call('exists', line) == 0 then
    return true
  end
  local now = milliseconds(redis.call('time'))
  local head = first_waiter(line, waiters, now)
  if head and head ~= claim then
    head = wake_first(line, waiters, publish, wake, now)
  end
  if head == claim then
    redis.call('lpop', line)
  end
  return not head or head == claim
end

-- Enters the line, or sends a heartbeat. Returns the number of waiters ahead, or nothing if there is no room.
-- A full server refuses a script whose first write needs memory: that of a heartbeat needs none.
local function stay(line, waiters, claim, place, lease, again)
  local now = milliseconds(redis.call('time'))
  if again then
    redis.call('pexpire', waiters, KEPT)
  end
  place = string.format('%.0f', now + lease) .. '\t' .. place
  local added = redis.pcall('hset', waiters, claim, place)
  if type(added) == 'table' then
    return nil
  end
  local ahead = added == 0 and redis.call('lpos', line, claim)
  if not ahead then
    ahead = redis.call('rpush', line, claim) - 1
  end
  if added == 0 or ahead == 0 then
    redis.call('pexpire', line, KEPT)
    redis.call('pexpire', waiters, KEPT)
  end
  return ahead
end

-- The answer to a claim that has to wait: {0, milliseconds left, flags}. The flags: 1 if it is the first,
-- 2 if the holder will not hand the lock to it, 4 if it is in the line.
local function wait_for(left, holder, ahead, state)
  local flags = ahead and 4 or 0
  if ahead == 0 then
    local held = holder and redis.call('hget', state, 'held')
    local mode, of = string.match(held or '', '^([^\t]*)\t[^\t]*\t([^\t]*)')
    flags = flags + 1 + ((of ~= holder or mode == 'fair') and 2 or 0)
  end
  return {0, left or 0, flags}
end

-- Leaves the line.
local function leave(line, waiters, claim, publish, wake)
  if redis.call('hdel', waiters, claim) == 0 then
    return
  end
  local was_first = redis.call('lindex', line, 0) == claim
  redis.call('lrem', line, 1, claim)
  if was_first then
    wake_first(line, waiters, publish, wake, milliseconds(redis.call('time')))
  end
end
