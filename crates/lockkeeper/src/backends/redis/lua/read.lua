-- The shared side of a read-write lock. Every read hold has a key of its own that says how long it lasts.

local found = redis.call('type', lock).ok
if found ~= 'none' and found ~= 'hash' then
  return {-1, found}
end
local mode = redis.call('hget', lock, 'mode')
if found == 'hash' and mode ~= 'read' and mode ~= 'write' then
  return {-1, mode or 'mutex'}
end

local function timeout_key(n)
  return stem .. ':' .. entry .. ':rwlock_timeout:' .. n
end

local function grant(n, is_first)
  redis.call('set', timeout_key(n), 1, 'px', ttl)
  extend(lock, ttl)
  count_claim(is_first)
  local answer = admitted(last_fence())
  -- The next one may be a reader too.
  wake()
  return answer
end

local holds = tonumber(redis.call('hget', lock, entry) or 0)
if holds > 0 and (claim == '' or redis.call('hexists', claims, claim) == 1) then
  -- Our own grant, whose answer was lost.
  return grant(holds)
end
if not mode and my_turn() then
  redis.call('hset', lock, 'mode', 'read', entry, 1)
  return grant(1, true)
end
local inside = holds > 0 or (mode == 'write' and redis.call('hexists', lock, entry .. ':write') == 1)
if inside or (mode == 'read' and my_turn()) then
  return grant(redis.call('hincrby', lock, entry, 1))
end
return busy(redis.call('pttl', lock))
