-- Releases one hold of an owner's mutex, or leaves its line.
-- KEYS: lock, state, line, waiters, claims, a key that never exists [, Redisson's token]
-- ARGV: hint, life, claim, publish, the channel of all releases, what the channels of waiters start with,
-- how many times in a row the lock was handed over, 1 if it may be in the line, the owner

local lock, state, line, waiters, claims, _, token = unpack(KEYS)
local hint, life, claim, publish, base, wake, passes, in_line, owner = unpack(ARGV)
if in_line == '1' then
  leave(line, waiters, claim, publish, wake)
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
redis.pcall('hdel', 'lockkeeper_asked' .. string.sub(state, #'lockkeeper' + 1), owner)
return hand_over(lock, state, line, waiters, token, hint, life, publish, base, wake, tonumber(passes))
