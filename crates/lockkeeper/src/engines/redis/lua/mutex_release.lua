-- Releases the common mutex. If nobody waits in its line, that is three server calls; whatever is rarer follows
-- in the texts that are appended to this one.
-- KEYS: lock, state, line, waiters, a key that never exists [, Redisson's token]
-- ARGV: hint, life, field, publish, the channel of all releases, what the channels of waiters start with,
-- how many times in a row the lock was handed over, 1 if it may be in the line
-- Returns 0 if it was not there, otherwise 1 plus the number of clients outside the line that were told.
-- The field belongs to one claim, and the hash ends with its last field.

local gone, claim = redis.pcall('hdel', KEYS[1], ARGV[3]), nil
-- After ten hand-overs in a row, those outside the line are asked for first.
if gone == 1 and #ARGV[7] == 1 then
  claim = redis.call('lpop', KEYS[3])
  if not claim then
    return 1 + redis.call(ARGV[4], ARGV[5], '0')
  end
end
