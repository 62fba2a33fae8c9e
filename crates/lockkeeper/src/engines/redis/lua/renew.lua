-- Extends many leases of one slot; never creates anything.
-- KEYS, for each: lock, state [, claims, permits, slots, who]
-- ARGV: life, keys per lease, and for each: kind, ttl, field, claim (or keep or kept, as it is shown), stem
-- Returns 1 or 0 for each.

local clock = redis.call('time')
local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
local life, width = ARGV[1], tonumber(ARGV[2])

local function extend(key, time)
  if redis.call('pttl', key) < tonumber(time) then
    redis.call('pexpire', key, time)
  end
end

local renew = {}

function renew.mutex(key, ttl, field)
  -- No write here needs memory. An error means that a string of another layout is there, or is raised again.
  local held = redis.pcall('hexists', key.lock, field)
  if type(held) == 'table' and redis.call('type', key.lock).ok == 'hash' then
    held = redis.call('hexists', key.lock, field)
  end
  if held ~= 1 then
    return false
  end
  redis.call('pexpire', key.state, life)
  return redis.call('pexpire', key.lock, ttl) == 1
end

-- A mutex that may be kept: its record shows whether it is. If that cannot be written, nobody sees it.
function renew.keep(key, ttl, field, shown)
  if not renew.mutex(key, ttl, field) then
    return false
  end
  local mode, rest = string.match(redis.call('hget', key.state, 'held') or '', '^(ke[ep][pt])(\t.*)$')
  if mode and mode ~= shown and string.match(rest, '^\t[^\t]*\t([^\t]*)') == field then
    redis.pcall('hset', key.state, 'held', shown .. rest)
  end
  return true
end

function renew.string(key, ttl, token)
  return redis.call('get', key.lock) == token and redis.call('pexpire', key.lock, ttl) == 1
end

function renew.owned(key, ttl, field, claim)
  if redis.call('hexists', key.lock, field) == 0 or redis.call('hexists', key.claims, claim) == 0 then
    return false
  end
  extend(key.lock, ttl)
  extend(key.claims, ttl)
  return true
end

function renew.read(key, ttl, field, claim, stem)
  local holds = tonumber(redis.call('hget', key.lock, field) or 0)
  local mine = claim == '' and 1 or tonumber(redis.call('hget', key.claims, claim) or nil)
  if holds == 0 or not mine then
    return false
  end
  local timeout_key = stem .. ':' .. field .. ':rwlock_timeout:' .. math.min(mine, holds)
  if redis.call('pttl', timeout_key) <= 0 then
    return false
  end
  extend(timeout_key, ttl)
  extend(key.lock, ttl)
  extend(key.claims, ttl)
  extend(key.who, ttl)
  return true
end

function renew.permits(key, ttl, field)
  local until_when = redis.call('zscore', key.permits, field)
  if not until_when or tonumber(until_when) <= now then
    return false
  end
  redis.call('zadd', key.permits, string.format('%.0f', now + ttl), field)
  for _, name in ipairs({key.lock, key.permits, key.slots, key.who}) do
    extend(name, ttl)
  end
  return true
end

local answers = {}
for i = 0, #KEYS / width - 1 do
  local key = {}
  key.lock, key.state, key.claims, key.permits, key.slots, key.who =
    unpack(KEYS, i * width + 1, (i + 1) * width)
  local kind, ttl, field, claim, stem = unpack(ARGV, i * 5 + 3, i * 5 + 7)
  local ours
  if kind == 'mutex' then
    ours = renew.mutex(key, ttl, field)
  elseif kind == 'keep' then
    ours = renew.keep(key, ttl, field, claim)
  else
    local family = kind == 'string' and 'string' or 'hash'
    ours = redis.call('type', key.lock).ok == family
    if ours then
      -- A full server refuses a script whose first write needs memory. This one needs none.
      redis.call('pexpire', key.state, life)
      ours = renew[kind](key, ttl, field, claim, stem)
    end
  end
  answers[i + 1] = ours and 1 or 0
end
return answers
