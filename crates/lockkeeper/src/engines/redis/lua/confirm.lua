-- The second round of a quorum: raises the counter to the fence that a majority is to agree on.
-- KEYS: lock, state
-- ARGV: field, fence, life, stem
-- Returns the requested fence, or the existing one if that stays, or -1 if the lock is not ours.
-- Without these checks, two holders could get the same fence, or two readers different ones: see
-- docs/redlock-proof.md.

local function is_in(field, count)
  for n = tonumber(count) or 0, 1, -1 do
    if redis.call('exists', ARGV[4] .. ':' .. field .. ':rwlock_timeout:' .. n) == 1 then
      return true
    end
  end
  return false
end

local found = redis.call('type', KEYS[1]).ok
local mode = found == 'hash' and redis.call('hget', KEYS[1], 'mode')
local ours
if found == 'string' then
  ours = redis.call('get', KEYS[1]) == ARGV[1]
elseif mode == 'read' then
  ours = is_in(ARGV[1], redis.call('hget', KEYS[1], ARGV[1]))
else
  ours = found == 'hash' and redis.call('hexists', KEYS[1], ARGV[1]) == 1
end
if not ours then
  return -1
end
local last = tonumber(redis.call('hget', KEYS[2], 'fence') or 0)
local fence = tonumber(ARGV[2])
if last > fence then
  return last
end
if mode == 'read' and last > 0 then
  -- Other readers may hold with the existing counter.
  local fields = redis.call('hgetall', KEYS[1])
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' and fields[i] ~= ARGV[1] and is_in(fields[i], fields[i + 1]) then
      return last
    end
  end
end
redis.call('hset', KEYS[2], 'fence', ARGV[2])
redis.call('pexpire', KEYS[2], ARGV[3])
return fence
