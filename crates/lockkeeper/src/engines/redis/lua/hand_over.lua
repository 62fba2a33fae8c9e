-- Gives a mutex that was just released to the first of its waiters, and tells it so in one message. Other
-- scripts are appended to this text.
--
-- The lock is handed over for a short time: the waiter extends it, or lets it expire if it is gone. The
-- message carries the heartbeat that the waiter counts its validity from, and the fence. One that listens to
-- the common channel of all releases has no place in the queue: after some hand-overs in a row it is let in.

-- Records the hold of an owner. It may be impossible while a slot of a Cluster moves.
local function count_owner(state, claim, identity, time)
  local names = string.sub(state, #'lockkeeper' + 1)
  local claims = 'lockkeeper_claims' .. names
  redis.pcall('del', claims)
  local counted = redis.pcall('hset', claims, claim, 'hold')
  redis.pcall('pexpire', claims, time)
  redis.pcall('hdel', 'lockkeeper_asked' .. names, identity)
  return type(counted) == 'number'
end

-- How many times in a row the lock is handed over while clients wait outside the queue.
local PASSES = 10

-- Returns 1 plus the number of clients outside the queue that were told. The first claim may have been taken
-- out of the queue already.
local function hand_over(lock, state, queue, waiters, token, hint, life, publish, base, wake, passes, claim)
  if passes >= PASSES then
    passes = 0
    local outside = redis.call(publish, base, '0')
    if outside > 0 then
      wake_first(queue, waiters, publish, wake, milliseconds(redis.call('time')), 'later')
      return 1 + outside
    end
  end
  local clock, fence
  while true do
    claim = claim or redis.call('lpop', queue)
    if not claim then
      return 1 + redis.call(publish, base, '0')
    end
    local place = redis.call('hget', waiters, claim)
    redis.call('hdel', waiters, claim)
    clock = clock or redis.call('time')
    local till, beat, time, record = string.match(place or '', '^(%d+)\t(%d+)\t(%d+)\t(.*)$')
    if till and tonumber(till) > milliseconds(clock) then
      fence = fence or string.format('%.0f', mint(state, token, hint, life, nil, clock))
      if tell(publish, wake, claim, beat .. ' ' .. fence .. ' ' .. passes + 1) then
        -- It holds from now on, and no longer waits.
        local mode, identity, rest = string.match(record, '^([^\t]*)\t[^\t]*\t([^\t]*)(.*)$')
        local since = string.format('%.0f', clock[1] * 1000000 + clock[2])
        if identity == claim or count_owner(state, claim, identity, time) then
          redis.call('hset', lock, identity, '1')
          redis.call('pexpire', lock, time)
          redis.call('hset', state, 'held', mode .. '\t' .. since .. '\t' .. identity .. rest)
          if token then
            -- The counter is elsewhere, so this may have created it.
            redis.call('pexpire', state, life)
          end
        end
        return 1
      end
    end
    claim = nil
  end
end
