-- The common mutex, if it is free and nobody waits: five server calls, one round trip. Whatever is rarer
-- follows in the texts that are appended to this one, so that this path does not even define it.
-- KEYS: lock, state, queue [, Redisson's token]
-- ARGV: hint, life, ttl, field, record, one text for the queue, see there [, how many fences to reserve]
-- Returns the new fence, or {2, fence, how many after it are reserved}, or {1, fence} if it was ours already,
-- or {0, milliseconds left, flags}, or {-1, what is there instead}.
-- If the hint is not a number, no counter is trusted. Numbers are passed to the server as text: Lua
-- would format them each time.

local call, lock, state, queue, token = redis.call, KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local fence
-- A server that is importing the slot may refuse to look at two keys; the rest looks at one at a time.
if redis.pcall('exists', lock, queue) == 0 then
  call('hset', lock, ARGV[4], '1')
  call('pexpire', lock, ARGV[3])
  call('hset', state, 'held', ARGV[5])
  fence = not token and call('hincrby', state, 'fence', '1')
  if fence and not ARGV[7] and fence >= (tonumber(ARGV[1]) or math.huge) then
    return fence
  end
end
