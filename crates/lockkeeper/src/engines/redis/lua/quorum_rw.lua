-- Shared by the scripts for read-write locks of a quorum; they are appended to this text.
-- KEYS: lock, state, who, wish; the last of ARGV is the stem of the keys of single read holds.
--
-- The layout is that of the Redis engine, so that inspecting, breaking and renewing are the same.
-- `state` has the fence counter, which does not change while a reader holds here; `wish` exists
-- while a writer waits for the readers to leave.

local call = redis.call
local lock, state, who, wish = unpack(KEYS)
local stem = ARGV[#ARGV]

local function timeout_key(field, n)
  return stem .. ':' .. field .. ':rwlock_timeout:' .. n
end

-- The time to live of a reader in milliseconds; 0 if it is not here, or no longer.
local function left(field, count)
  local longest = 0
  for n = tonumber(count) or 0, 1, -1 do
    longest = math.max(longest, call('pttl', timeout_key(field, n)))
  end
  return longest
end

-- The time to live of the last of all other readers.
local function others(field)
  local longest = 0
  local fields = call('hgetall', lock)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' and fields[i] ~= field then
      longest = math.max(longest, left(fields[i], fields[i + 1]))
    end
  end
  return longest
end

-- What is there, if it is no read-write lock.
local function conflict()
  local found = kind_of(lock, state, stem)
  if found == 'none' then
    return nil
  end
  if found == 'read' or found == 'write' then
    return nil, found
  end
  return {-1, found}
end

local function set_fence(fence, life)
  call('hset', state, 'fence', string.format('%.0f', fence))
  call('pexpire', state, life)
end

local function clock()
  local time = call('time')
  return time[1] * 1000000 + time[2]
end

-- Removes a holder. True if it held until now.
local function drop(field, mode)
  local count = call('hget', lock, field)
  if not count then
    return false
  end
  local was_in = mode == 'write' or left(field, count) > 0
  call('del', timeout_key(field, 1))
  call('hdel', lock, field)
  call('hdel', who, field)
  local longest = mode == 'read' and others(field) or 0
  if longest > 0 then
    call('pexpire', lock, longest)
  else
    call('del', lock)
  end
  return was_in
end
