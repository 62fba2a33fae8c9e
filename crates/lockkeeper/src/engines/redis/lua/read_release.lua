-- Releases one read hold, or leaves the queue.

local found = redis.call('type', lock).ok
local holds = found == 'hash' and tonumber(redis.call('hget', lock, entry) or 0) or 0
local mine = claim == '' and 1 or tonumber(redis.call('hget', claims, claim) or nil)
if holds == 0 or not mine then
  local _, was_first = leave_queue()
  redis.call('hdel', who, entry)
  if was_first then
    wake()
  end
  return 0
end

if claim ~= '' then
  local last = redis.call('hget', claims, entry .. ' ' .. holds)
  redis.call('hdel', claims, claim, entry .. ' ' .. holds)
  if mine < holds then
    -- The names stay numbered without gaps: the last one takes the place of the one that is
    -- removed.
    if last then
      redis.call('hset', claims, last, mine, entry .. ' ' .. mine, last)
    end
    local left = redis.call('pttl', timeout_key(entry, holds))
    if left > 0 then
      redis.call('set', timeout_key(entry, mine), 1, 'px', left)
    else
      redis.call('del', timeout_key(entry, mine))
    end
  end
end
redis.call('del', timeout_key(entry, holds))
if redis.call('hincrby', lock, entry, -1) == 0 then
  redis.call('hdel', lock, entry)
  redis.call('hdel', who, entry)
  forget_question()
end

-- The lock lasts as long as the longest of the others.
local longest, mode = sweep_readers()
if mode == 'write' then
  return 1
end
if longest > 0 then
  redis.call('pexpire', lock, text(longest))
  return 1
end
redis.call('del', lock)
redis.call('del', claims)
redis.call(publish, base_channel, '0')
wake()
return 1
