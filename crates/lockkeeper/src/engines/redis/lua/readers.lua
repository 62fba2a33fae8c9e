-- Shared by the scripts that acquire and release read holds. Every read hold has its own key, which
-- carries its time to live. The keys are numbered per owner, as Redisson does; `claims` maps them
-- to claims, because the holds of one owner may have different lengths.

local function timeout_key(field, n)
  return stem .. ':' .. field .. ':rwlock_timeout:' .. n
end

-- Removes readers that died. Returns the time to live of the last remaining one in milliseconds,
-- and the mode.
local function sweep_readers()
  local longest, mode = 0
  local fields = redis.call('hgetall', lock)
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
        for n = count, 1, -1 do
          local name = field .. ' ' .. n
          redis.call('hdel', claims, redis.call('hget', claims, name) or name, name)
        end
      end
      longest = math.max(longest, left)
    end
  end
  return longest, mode
end
