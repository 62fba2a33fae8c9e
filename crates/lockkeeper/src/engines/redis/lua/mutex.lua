-- The common mutex: no owner, no queue. Four to six server calls, one round trip.
-- KEYS: lock, state [, Redisson's token]
-- ARGV: hint, life, ttl, field, record; from a client that has waited for a while also how long to show it
-- as a waiter, or 0, and its record
-- Returns the new fence, or {1, fence} if it was ours already, or {0, milliseconds left}, or {-1,
-- what is there instead}.
-- If the hint is not a number, no counter is trusted. Numbers are passed to the server as text: Lua
-- would format them each time.

local call, lock, state, field = redis.call, KEYS[1], KEYS[2], ARGV[4]
local free = call('exists', lock) == 0
if free then
  call('hset', lock, field, '1')
  call('pexpire', lock, ARGV[3])
  call('hset', state, 'held', ARGV[5])
  if ARGV[6] then
    redis.pcall('hdel', beside(state, 'lockkeeper_waiters'), field)
  end
else
  local found, left, holder = kind_of(lock, state)
  if found ~= 'mutex' then
    return {-1, found}
  end
  if holder ~= field then
    if (tonumber(ARGV[6]) or 0) > 0 then
      show_waiter(beside(state, 'lockkeeper_waiters'), field, ARGV[6], ARGV[7])
    end
    return {0, left}
  end
  -- Our own grant, whose reply was lost.
  call('pexpire', lock, ARGV[3])
  local fence = KEYS[3] and call('get', KEYS[3]) or call('hget', state, 'fence')
  if fence then
    return {1, tonumber(fence)}
  end
end

if KEYS[3] then
  call('pexpire', state, ARGV[2])
  local fence = call('incr', KEYS[3])
  return free and fence or {1, fence}
end
local fence = call('hincrby', state, 'fence', '1')
if fence < (tonumber(ARGV[1]) or math.huge) then
  -- New, lost, or taken over in a failover that may have lost some: continue from the clock.
  local clock = call('time')
  fence = math.max(fence, clock[1] * 1000000 + clock[2])
  call('hset', state, 'fence', string.format('%.0f', fence))
  call('pexpire', state, ARGV[2])
end
return free and fence or {1, fence}
