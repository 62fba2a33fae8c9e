-- Releases one write hold, or leaves the queue.

local found = redis.call('type', lock).ok
local held = found == 'hash' and redis.call('hexists', lock, entry) == 1
if not held or (claim ~= '' and redis.call('hdel', claims, claim) == 0) then
  local _, was_first = leave_queue()
  redis.call('hdel', who, entry)
  if was_first then
    wake()
  end
  return 0
end
-- Only an owner has more than one. A full server refuses a script whose first write needs memory.
if claim ~= '' and redis.call('hincrby', lock, entry, -1) > 0 then
  return 1
end
redis.call('hdel', lock, entry)
redis.call('hdel', who, entry)
forget_question()
if redis.call('hlen', lock) == 1 then
  redis.call('del', lock)
  redis.call('del', claims)
else
  -- The owner also holds as a reader, and continues as one.
  redis.call('hset', lock, 'mode', 'read')
end
redis.call(publish, base_channel, '1')
wake()
return 1
