-- What taking and giving back read holds share. Every read hold has a key of its own that says how long
-- it lasts. Their names are counted for each owner, as Redisson does it; `claims` says which of them
-- belongs to which claim, because the holds of one owner may be of different length.

local function timeout_key(field, n)
  return stem .. ':' .. field .. ':rwlock_timeout:' .. n
end

-- Takes readers out who died. How long the last of the others stays, in milliseconds, and the mode.
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
