-- The queue of a mutex that is not fair. Other scripts are appended to this text.
--
-- `queue` is a list of the claims that wait, the first of which is next. `waiters` has for each of them, with
-- tabs between: the time until which it counts, by the server's clock; which of its heartbeats that was;
-- for how many milliseconds the lock is handed to it; and its record, which names its field in the lock.
-- Its client listens to a channel that ends with the first 36 characters of the claim.

-- What is kept of a queue whose clients all died goes after this many milliseconds.
local KEPT = '60000'

local function milliseconds(clock)
  return clock[1] * 1000 + math.floor(clock[2] / 1000)
end

-- Tells a waiter something. False if nobody listens: its client is gone, and will join again if it is not.
local function tell(publish, wake, claim, what)
  return redis.call(publish, wake .. string.sub(claim, 1, 36), claim .. ' ' .. what) > 0
end

-- A key of the same lock. Every key and every argument of a script costs the server some time, so what is
-- rarely needed is not passed, or in one text.
local function beside_queue(queue, name)
  return name .. string.sub(queue, #'lockkeeper_mutex_queue' + 1)
end

-- What the channels of waiters start with.
local function channels(queue)
  return beside_queue(queue, 'lockkeeper_wake') .. ':'
end

-- From the text that comes with an attempt, with tabs between: whether to join the queue (0, 1, or 2 if it
-- is in it already), publish, how long the place in it counts, and what is stored of it.
local function read_queue(text)
  return string.match(text, '^(%d)\t(%l+)\t(%d+)\t(.*)$')
end

-- The next fence. It may have been counted already.
local function mint(state, token, hint, life, fence, clock)
  if token then
    redis.call('pexpire', state, life)
    return redis.call('incr', token)
  end
  fence = fence or redis.call('hincrby', state, 'fence', '1')
  if fence < (tonumber(hint) or math.huge) then
    -- New, lost, or taken over in a failover that may have lost some: continue from the clock.
    clock = clock or redis.call('time')
    fence = math.max(fence, clock[1] * 1000000 + clock[2])
    redis.call('hset', state, 'fence', string.format('%.0f', fence))
    redis.call('pexpire', state, life)
  end
  return fence
end

local function remove_first(queue, waiters, head)
  redis.call('lpop', queue)
  redis.call('hdel', waiters, head)
end

-- The first waiter that is alive.
local function first_waiter(queue, waiters, now)
  while true do
    local head = redis.call('lindex', queue, 0)
    local place = head and redis.call('hget', waiters, head)
    if not head or place and tonumber(string.match(place, '^%d+')) > now then
      return head
    end
    remove_first(queue, waiters, head)
  end
end

-- Tells the first waiter that is there to ask, or something else. Returns it.
local function wake_first(queue, waiters, publish, wake, now, what)
  while true do
    local head = first_waiter(queue, waiters, now)
    if not head or tell(publish, wake, head, what or 'ask') then
      return head
    end
    remove_first(queue, waiters, head)
  end
end

-- Whether a free lock is this claim's to take. If it is another's, that one is told.
local function is_turn(queue, waiters, claim, publish, wake)
  if redis.call('exists', queue) == 0 then
    return true
  end
  local now = milliseconds(redis.call('time'))
  local head = first_waiter(queue, waiters, now)
  if head and head ~= claim then
    head = wake_first(queue, waiters, publish, wake, now)
  end
  if head == claim then
    redis.call('lpop', queue)
  end
  return not head or head == claim
end

-- Joins the queue, or sends a heartbeat. Returns the number of waiters ahead, or nothing if there is no room.
-- A full server refuses a script whose first write needs memory: that of a heartbeat needs none.
local function stay(queue, waiters, claim, place, lease, again)
  local now = milliseconds(redis.call('time'))
  if again then
    redis.call('pexpire', waiters, KEPT)
  end
  place = string.format('%.0f', now + lease) .. '\t' .. place
  local added = redis.pcall('hset', waiters, claim, place)
  if type(added) == 'table' then
    return nil
  end
  local ahead = added == 0 and redis.call('lpos', queue, claim)
  if not ahead then
    ahead = redis.call('rpush', queue, claim) - 1
  end
  if added == 0 or ahead == 0 then
    redis.call('pexpire', queue, KEPT)
    redis.call('pexpire', waiters, KEPT)
  end
  return ahead
end

-- The answer to a claim that has to wait: {0, milliseconds left, flags}. The flags: 1 if it is the first,
-- 2 if the holder will not hand the lock to it, 4 if it is in the queue.
-- The first of them and those outside the queue let a holder that keeps the lock know.
local function wait_for(left, holder, ahead, state, wish, publish)
  local flags = ahead and 4 or 0
  local mode, of
  if holder and (not ahead or ahead == 0) then
    mode, of = wish(state, holder, publish)
  end
  if ahead == 0 then
    flags = flags + 1 + ((of ~= holder or mode == 'fair') and 2 or 0)
  end
  return {0, left or 0, flags}
end

-- Leaves the queue.
local function leave(queue, waiters, claim, publish, wake)
  if redis.call('hdel', waiters, claim) == 0 then
    return
  end
  local was_first = redis.call('lindex', queue, 0) == claim
  redis.call('lrem', queue, 1, claim)
  if was_first then
    wake_first(queue, waiters, publish, wake, milliseconds(redis.call('time')))
  end
end
