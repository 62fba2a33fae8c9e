-- The common mutex: no owner, no line of waiters. Four to six server calls, one round trip.
-- KEYS: lock, state [, Redisson's token]
-- ARGV: hint, life, ttl, field, record
-- Answers the new fence, or {1, fence} if it was ours already, or {0, milliseconds left},
-- or {-1, what is there instead}.

local function mint()
  if KEYS[3] then
    redis.call('pexpire', KEYS[2], ARGV[2])
    return redis.call('incr', KEYS[3])
  end
  local fence = redis.call('hincrby', KEYS[2], 'fence', 1)
  if fence < tonumber(ARGV[1]) then
    -- New, forgotten, or carried over by a failover that may have lost some: the clock goes on.
    local clock = redis.call('time')
    fence = math.max(fence, clock[1] * 1000000 + clock[2])
    redis.call('hset', KEYS[2], 'fence', string.format('%.0f', fence))
    redis.call('pexpire', KEYS[2], ARGV[2])
  end
  return fence
end

if redis.call('exists', KEYS[1]) == 0 then
  redis.call('hset', KEYS[1], ARGV[4], 1)
  redis.call('pexpire', KEYS[1], ARGV[3])
  redis.call('hset', KEYS[2], 'held', ARGV[5])
  return mint()
end

local found = redis.call('type', KEYS[1]).ok
if found ~= 'hash' then
  return {-1, found}
end
if redis.call('hexists', KEYS[1], ARGV[4]) == 1 then
  -- Our own grant, whose answer was lost.
  redis.call('pexpire', KEYS[1], ARGV[3])
  local fence = KEYS[3] and redis.call('get', KEYS[3]) or redis.call('hget', KEYS[2], 'fence')
  return {1, fence and tonumber(fence) or mint()}
end
local mode = redis.call('hget', KEYS[1], 'mode')
if mode then
  return {-1, mode}
end
return {0, redis.call('pttl', KEYS[1])}
