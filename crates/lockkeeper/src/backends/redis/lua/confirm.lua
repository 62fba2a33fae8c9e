-- The second round of a quorum: raises the counter to the fence that a majority is to agree on.
-- KEYS: lock, state
-- ARGV: field, fence, life
-- Answers the fence asked for, or the higher one that is there, or -1 where the lock is not ours.
-- Without either check two holders could end up with one fence: see docs/redlock-proof.md.

local found = redis.call('type', KEYS[1]).ok
local ours = found == 'string' and redis.call('get', KEYS[1]) == ARGV[1]
  or found == 'hash' and redis.call('hexists', KEYS[1], ARGV[1]) == 1
if not ours then
  return -1
end
local last = tonumber(redis.call('hget', KEYS[2], 'fence') or 0)
local fence = tonumber(ARGV[2])
if last > fence then
  return last
end
redis.call('hset', KEYS[2], 'fence', ARGV[2])
redis.call('pexpire', KEYS[2], ARGV[3])
return fence
