-- Everything that is known of one lock. Changes nothing.
-- KEYS: lock, state, queue, timeouts, beats, claims, who, permits, slots, the other queue
-- ARGV: stem, 1 where locks are strings
-- Answers {kind, limit, fence, holders, waiters}; a holder is {field, value, left, record},
-- a waiter {entry, record}. The kind of what is no lock is its type, or data.

local lock, state, queue, _, beats, _, who, permits, _, other_queue = unpack(KEYS)
local stem = ARGV[1]
local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)

local held = redis.call('hget', state, 'held') or ''
local function record(field)
  return redis.call('hget', who, field) or held
end

local kind, limit = kind_of(lock, state, stem), ''
local holders = {}
if kind == 'string' and is_string_lock(lock, state, ARGV[2] == '1') then
  kind = 'token'
  holders[1] = {redis.call('get', lock), '1', redis.call('pttl', lock), held}
elseif kind == 'mutex' or kind == 'read' or kind == 'write' or kind == 'semaphore' then
  limit = redis.call('hget', lock, 'limit') or ''
  local fields = redis.call('hgetall', lock)
  for i = 1, #fields, 2 do
    local field, value = fields[i], fields[i + 1]
    local left = redis.call('pttl', lock)
    local counts = field ~= 'mode' and not (kind == 'semaphore' and (field == 'limit' or field == 'taken'))
    if kind == 'semaphore' then
      left = (redis.call('zscore', permits, field) or now) - now
    elseif counts and kind ~= 'mutex' and string.sub(field, -6) ~= ':write' then
      left = 0
      for n = tonumber(value) or 0, 1, -1 do
        left = math.max(left, redis.call('pttl', stem .. ':' .. field .. ':rwlock_timeout:' .. n))
      end
    end
    if counts and left ~= 0 and (left > 0 or kind == 'mutex' or kind == 'write') then
      holders[#holders + 1] = {field, value, left, record(field)}
    end
  end
end

local waiters = {}
for _, line in ipairs({queue, other_queue}) do
  for _, entry in ipairs(redis.call('lrange', line, 0, -1)) do
    local limit_of_life = redis.call('zscore', beats, entry)
    if not limit_of_life or tonumber(limit_of_life) > now then
      waiters[#waiters + 1] = {entry, redis.call('hget', who, entry) or ''}
    end
  end
end
return {kind, limit, redis.call('hget', state, 'fence') or '', holders, waiters}
