-- Determines what is stored at a lock's name; other scripts are appended to this text.
--
-- Whatever is not certainly a lock of a known layout is application data. It never counts as held,
-- and is never changed. A lock always expires, and its fields are `<uuid>:<n>` as Redisson and we
-- write them, or those of owners that are recorded next to it.

local UUID = '^%x%x%x%x%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%-%x%x%x%x%x%x%x%x%x%x%x%x:'

-- Whether this was the last exclusive holder.
local function is_noted(state, field)
  local held = redis.call('hget', state, 'held')
  return held and string.match(held, '^[^\t]*\t[^\t]*\t([^\t]*)') == field
end

-- The name of another key next to the lock. All of them end alike.
local function beside(state, kind)
  return kind .. string.sub(state, #'lockkeeper' + 1)
end

-- Tells a holder that keeps its lock that it is wanted. Returns the mode and the field of the last exclusive
-- holder.
local function wish(state, holder, publish)
  local held = redis.call('hget', state, 'held')
  local mode, of = string.match(held or '', '^([^\t]*)\t[^\t]*\t([^\t]*)')
  if of == holder and (mode == 'keep' or mode == 'kept') then
    redis.call(publish, beside(state, 'lockkeeper_wake') .. ':' .. string.sub(of, 1, 36), of .. ' wish')
  end
  return mode, of
end

local function is_hold(field, count, state, stem)
  if not string.find(count, '^[1-9]%d*$') then
    return false
  end
  return string.find(field, UUID)
    or is_noted(state, field)
    or redis.call('hexists', beside(state, 'lockkeeper_who'), field) == 1
    or stem and redis.call('exists', stem .. ':' .. field .. ':rwlock_timeout:1') == 1
end

-- Returns what is there: none, mutex, read, write, semaphore; string; data for a hash that is no
-- lock; otherwise the type. For a lock also its time to live, and for a mutex its field.
local function kind_of(lock, state, stem)
  local size = redis.pcall('hlen', lock)
  if type(size) == 'table' then
    return redis.call('type', lock).ok
  end
  if size == 0 then
    return 'none'
  end
  local left = redis.call('pttl', lock)
  if left < 0 then
    return 'data'
  end
  if size == 1 then
    local field, count = unpack(redis.call('hgetall', lock))
    return is_hold(field, count, state) and 'mutex' or 'data', left, field
  end
  local mode = redis.call('hget', lock, 'mode')
  if mode == 'semaphore' then
    return redis.call('exists', beside(state, 'lockkeeper_permits')) == 1 and mode or 'data', left
  end
  if mode ~= 'read' and mode ~= 'write' then
    return 'data'
  end
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    if fields[i] ~= 'mode' and not is_hold(fields[i], fields[i + 1], state, stem) then
      return 'data'
    end
  end
  return mode, left
end

-- A string may be anything. It is a lock if we recorded it, or if it expires and locks are strings.
local function is_string_lock(lock, state, strings)
  return is_noted(state, redis.call('get', lock)) or strings and redis.call('pttl', lock) >= 0
end
