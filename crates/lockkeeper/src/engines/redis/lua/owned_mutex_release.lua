-- Releases one hold of an owner's mutex, or leaves its queue.
-- KEYS: lock, queue, a key that never exists, claims [, Redisson's token]
-- ARGV: as of the common mutex, with the claim instead of the field, and the owner

local lock, queue, _, claims, token = unpack(KEYS)
local hint, claim, publish, base, passes, in_queue, life, owner = unpack(ARGV)
local wake, state = channels(queue), beside_queue(queue, 'lockkeeper')
local waiters = beside_queue(queue, 'lockkeeper_waiters')
if in_queue == '1' then
  leave(queue, waiters, claim, publish, wake)
end
local held = redis.call('type', lock).ok == 'hash' and redis.call('hexists', lock, owner) == 1
if not held or redis.call('hdel', claims, claim) == 0 then
  return 0
end
-- A full server refuses a script whose first write needs memory.
if redis.call('hincrby', lock, owner, '-1') > 0 then
  return 1
end
redis.call('del', lock)
redis.call('del', claims)
redis.pcall('hdel', beside_queue(queue, 'lockkeeper_asked'), owner)
return hand_over(lock, state, queue, waiters, token, hint, life, publish, base, wake, tonumber(passes))
