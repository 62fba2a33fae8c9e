-- Releases one hold of a fair mutex, or leaves its queue.

local mutex_queue, waiters, token, own_channel = KEYS[10], KEYS[11], KEYS[12], ARGV[14]
local found = redis.call('type', lock).ok
local held = found == 'hash' and redis.call('hexists', lock, entry) == 1
if not held or (claim ~= '' and redis.call('hdel', claims, claim) == 0) then
  local _, was_first = leave_queue()
  redis.call('hdel', who, entry)
  if was_first and found == 'none' then
    wake()
  end
  return 0
end
-- Only an owner has more than one. A full server refuses a script whose first write needs memory.
if claim ~= '' and redis.call('hincrby', lock, entry, -1) > 0 then
  return 1
end
redis.call('del', lock)
redis.call('del', claims)
redis.call('hdel', who, entry)
forget_question()
if wake() then
  -- Those in the queue of the mutex that is not fair may come first as well.
  wake_first(mutex_queue, waiters, publish, own_channel, now)
else
  hand_over(lock, state, mutex_queue, waiters, token, hint, life, publish, base_channel, own_channel, 0)
end
return 1
