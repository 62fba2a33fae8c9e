-- The list of the last locks that were broken, the last one at its end.
-- KEYS: the list
-- ARGV: "add", a line, how many lines to keep, and for how many milliseconds; or "remove" and a line;
-- or "list".

local list = KEYS[1]
local what, line, kept, life = unpack(ARGV)
if what == 'add' then
  -- No command that locks do not need as well, and so may be forbidden.
  local length = redis.call('rpush', list, line)
  for _ = kept + 1, length do
    redis.call('lrem', list, 1, redis.call('lindex', list, 0))
  end
  return redis.call('pexpire', list, life)
elseif what == 'remove' then
  return redis.call('lrem', list, 1, line)
end
return redis.call('lrange', list, 0, -1)
