-- Everything that is known of some locks. Changes nothing.
-- KEYS, for each: lock, state, queue, timeouts, beats, claims, who, permits, slots, the other queue,
-- mutex queue, waiters
-- ARGV: 1 where locks are strings, and for each: stem
-- Answers {kind, limit, fence, holders, waiters} for each; a holder is {field, value, left, record},
-- a waiter {entry, record}. The kind of what is no lock is its type, or data.

local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local strings = ARGV[1] == '1'

local function holders_of(lock, kind, stem, permits, record)
  local holders = {}
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local counts = field ~= 'mode' and not (kind == 'semaphore' and (field == 'limit' or field == 'taken'))
    local left
    if kind == 'semaphore' then
      left = (redis.call('zscore', permits, field) or now) - now
    elseif counts and string.sub(field, -6) ~= ':write' then
      left = 0
      for n = tonumber(value) or 0, 1, -1 do
        left = math.max(left, redis.call('pttl', stem .. ':' .. field .. ':rwlock_timeout:' .. n))
      end
    else
      left = redis.call('pttl', lock)
    end
    if counts and left ~= 0 and (left > 0 or kind == 'write') then
      holders[#holders + 1] = {field, value, left, record(field)}
    end
  end
  return holders
end

-- Those in a queue who are alive, with their records. Few calls, however many they are.
local function add_queue(waiters, list, beats, who)
  local entries = redis.call('lrange', list, 0, -1)
  if #entries == 0 then
    return
  end
  local limits, records = {}, {}
  local scores = redis.call('zrange', beats, 0, -1, 'withscores')
  for i = 1, #scores, 2 do
    limits[scores[i]] = tonumber(scores[i + 1])
  end
  local noted = redis.call('hgetall', who)
  for i = 1, #noted, 2 do
    records[noted[i]] = noted[i + 1]
  end
  for _, entry in ipairs(entries) do
    if not limits[entry] or limits[entry] > now then
      waiters[#waiters + 1] = {entry, records[entry] or ''}
    end
  end
end

-- Those in the queue of a mutex that is not fair, in order. What is no list or hash shows nobody.
local function add_waiters(waiters, list, shown)
  local entries = redis.pcall('lrange', list, 0, -1)
  local places = {}
  local fields = #entries > 0 and redis.pcall('hgetall', shown) or {}
  for i = 1, #fields, 2 do
    places[fields[i]] = fields[i + 1]
  end
  for _, claim in ipairs(entries) do
    local till, record = string.match(places[claim] or '', '^(%d+)\t%d+\t%d+\t(.*)$')
    if till and tonumber(till) > now then
      waiters[#waiters + 1] = {string.match(record, '^[^\t]*\t[^\t]*\t([^\t]*)'), record}
    end
  end
end

local function look(stem, lock, state, queue, _, beats, _, who, permits, _, other_queue, mutex_queue, shown)
  local held, fence = redis.call('hget', state, 'held'), redis.call('hget', state, 'fence')
  local function record(field)
    return redis.call('hget', who, field) or held or ''
  end
  local kind, left, field = kind_of(lock, state, stem)
  local limit, holders = '', {}
  if kind == 'string' and is_string_lock(lock, state, strings) then
    kind = 'token'
    holders[1] = {redis.call('get', lock), '1', redis.call('pttl', lock), held or ''}
  elseif kind == 'mutex' then
    holders[1] = {field, '1', left, record(field)}
  elseif kind == 'read' or kind == 'write' or kind == 'semaphore' then
    limit = redis.call('hget', lock, 'limit') or ''
    holders = holders_of(lock, kind, stem, permits, record)
  end
  local waiters = {}
  add_queue(waiters, queue, beats, who)
  add_queue(waiters, other_queue, beats, who)
  add_waiters(waiters, mutex_queue, shown)
  return {kind, limit, fence or '', holders, waiters}
end

local answers = {}
for i = 0, #KEYS / 12 - 1 do
  answers[i + 1] = look(ARGV[i + 2], unpack(KEYS, i * 12 + 1, i * 12 + 12))
end
return answers
