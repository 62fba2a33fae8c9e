-- Releases the common mutex. If nobody waits in its queue, that is three server calls; whatever is rarer
-- follows in the texts that are appended to this one.
-- KEYS: lock, queue, a key that never exists [, Redisson's token]
-- ARGV: hint, field, publish, the channel of all releases, how many times in a row the lock was handed over,
-- 1 if it may be in the queue, life
-- Returns 0 if it was not there, otherwise 1 plus the number of clients outside the queue that were told.
-- The field belongs to one claim, and the hash ends with its last field.

local gone, first = redis.pcall('hdel', KEYS[1], ARGV[2]), nil
-- After ten hand-overs in a row, those outside the queue are asked for first.
if gone == 1 and #ARGV[5] == 1 then
  first = redis.call('lpop', KEYS[2])
  if not first then
    return 1 + redis.call(ARGV[3], ARGV[4], '0')
  end
end
