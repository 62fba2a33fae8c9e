-- The common mutex, if it is free and nobody waits: five server calls, one round trip. Whatever is rarer
-- follows in the texts that are appended to this one, so that this path does not even define it.
-- KEYS: lock, state, line, waiters [, Redisson's token]
-- ARGV: hint, life, ttl, field, record, whether to join the line (0, 1, or 2 if it is in it already), and
-- for the line: publish, what channels of waiters start with, the place in it, how long that counts.
-- Returns the new fence, or {1, fence} if it was ours already, or {0, milliseconds left, flags}, or {-1,
-- what is there instead}.
-- If the hint is not a number, no counter is trusted. Numbers are passed to the server as text: Lua
-- would format them each time.

local call, lock, state, line, waiters = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local field, join = ARGV[4], ARGV[6]

local function mint()
  if KEYS[5] then
    call('pexpire', state, ARGV[2])
    return call('incr', KEYS[5])
  end
  local fence = call('hincrby', state, 'fence', '1')
  if fence < (tonumber(ARGV[1]) or math.huge) then
    -- New, lost, or taken over in a failover that may have lost some: continue from the clock.
    local clock = call('time')
    fence = math.max(fence, clock[1] * 1000000 + clock[2])
    call('hset', state, 'fence', string.format('%.0f', fence))
    call('pexpire', state, ARGV[2])
  end
  return fence
end

local function take()
  call('hset', lock, field, '1')
  call('pexpire', lock, ARGV[3])
  call('hset', state, 'held', ARGV[5])
  if join == '2' then
    call('hdel', waiters, field)
  end
  return mint()
end

-- A server that is importing the slot may refuse to look at two keys; the rest looks at one at a time.
if redis.pcall('exists', lock, line) == 0 then
  return take()
end
