-- KEYS: lock [, waiters, if it may be shown among them]
-- ARGV: field, channel, publish
-- Answers 0 if it was not there, else 1 and how many were told.
-- The field is one claim's, and the last field takes the hash with it.

if KEYS[2] then
  redis.call('hdel', KEYS[2], ARGV[1])
end
local gone = redis.pcall('hdel', KEYS[1], ARGV[1])
if type(gone) == 'table' then
  -- A string of another family is there now: our lock is gone. Anything else is for the caller.
  return string.sub(gone.err, 1, 9) == 'WRONGTYPE' and 0 or gone
end
if gone == 1 then
  return 1 + redis.call(ARGV[3], ARGV[2], '0')
end
return gone
