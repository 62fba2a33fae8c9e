-- One string, as SET NX PX creates it.
-- KEYS: lock, state
-- ARGV: hint, life, ttl, token, record
-- Returns the same as the mutex script.

local function mint()
  local fence = redis.call('hincrby', KEYS[2], 'fence', 1)
  if fence < (tonumber(ARGV[1]) or math.huge) then
    local clock = redis.call('time')
    fence = math.max(fence, clock[1] * 1000000 + clock[2])
    redis.call('hset', KEYS[2], 'fence', string.format('%.0f', fence))
    redis.call('pexpire', KEYS[2], ARGV[2])
  end
  return fence
end

if redis.call('set', KEYS[1], ARGV[4], 'nx', 'px', ARGV[3]) then
  redis.call('hset', KEYS[2], 'held', ARGV[5])
  return mint()
end
local found = redis.call('type', KEYS[1]).ok
if found ~= 'string' then
  local mode = found == 'hash' and redis.call('hget', KEYS[1], 'mode')
  return {-1, (mode == 'read' or mode == 'write' or mode == 'semaphore') and mode or found}
end
if redis.call('get', KEYS[1]) == ARGV[4] then
  redis.call('pexpire', KEYS[1], ARGV[3])
  local fence = redis.call('hget', KEYS[2], 'fence')
  return {1, fence and tonumber(fence) or mint()}
end
return {0, redis.call('pttl', KEYS[1])}
