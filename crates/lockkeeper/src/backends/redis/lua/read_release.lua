-- Gives one read hold back, or a place in the line.

local found = redis.call('type', lock).ok
local holds = found == 'hash' and tonumber(redis.call('hget', lock, entry) or 0) or 0
if holds == 0 or (claim ~= '' and redis.call('hdel', claims, claim) == 0) then
  local _, was_first = leave_line()
  redis.call('hdel', who, entry)
  if was_first then
    wake()
  end
  return 0
end

local function timeout_key(field, n)
  return stem .. ':' .. field .. ':rwlock_timeout:' .. n
end

redis.call('del', timeout_key(entry, holds))
if redis.call('hincrby', lock, entry, -1) == 0 then
  redis.call('hdel', lock, entry)
  redis.call('hdel', who, entry)
end

-- The lock lasts as long as the longest of the others; readers that died are swept out.
local longest = 0
local fields = redis.call('hgetall', lock)
local mode
for i = 1, #fields, 2 do
  local field, count = fields[i], tonumber(fields[i + 1])
  if field == 'mode' then
    mode = fields[i + 1]
  elseif count and string.sub(field, -6) ~= ':write' then
    local left = 0
    for n = count, 1, -1 do
      left = math.max(left, redis.call('pttl', timeout_key(field, n)))
    end
    if left == 0 then
      redis.call('hdel', lock, field)
      redis.call('hdel', who, field)
    end
    longest = math.max(longest, left)
  end
end
if mode == 'write' then
  return 1
end
if longest > 0 then
  redis.call('pexpire', lock, text(longest))
  return 1
end
redis.call('del', lock)
redis.call('del', claims)
redis.call(publish, base_channel, '0')
wake()
return 1
