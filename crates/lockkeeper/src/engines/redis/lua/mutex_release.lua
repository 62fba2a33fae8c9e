-- KEYS: lock [, state, if it may be shown among the waiters]
-- ARGV: field, channel, publish
-- Returns 0 if it was not there, otherwise 1 plus the number of subscribers that were notified.
-- The field belongs to one claim, and the hash ends with its last field.

if KEYS[2] then
  -- It may be on the other server while a slot of a Cluster moves.
  redis.pcall('hdel', 'lockkeeper_waiters' .. string.sub(KEYS[2], #'lockkeeper' + 1), ARGV[1])
end
local gone = redis.pcall('hdel', KEYS[1], ARGV[1])
if type(gone) == 'table' then
  -- A string of another layout is there now: our lock is gone. Any other error is for the caller.
  return string.sub(gone.err, 1, 9) == 'WRONGTYPE' and 0 or gone
end
if gone == 1 then
  return 1 + redis.call(ARGV[3], ARGV[2], '0')
end
return gone
