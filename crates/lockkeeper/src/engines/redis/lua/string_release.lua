-- KEYS: lock
-- ARGV: token, channel, publish
-- Returns 0 if it was not ours, otherwise 1 plus the number of subscribers that were notified.

local found = redis.pcall('get', KEYS[1])
if type(found) == 'table' then
  return string.sub(found.err, 1, 9) == 'WRONGTYPE' and 0 or found
end
if found ~= ARGV[1] then
  return 0
end
redis.call('del', KEYS[1])
return 1 + redis.call(ARGV[3], ARGV[2], '0')
