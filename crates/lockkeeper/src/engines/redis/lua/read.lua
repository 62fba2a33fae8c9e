-- The shared side of a read-write lock.

local found = kind_of(lock, state, stem)
if found ~= 'none' and found ~= 'read' and found ~= 'write' then
  return {-1, found}
end

-- How many readers may have died before a new one sweeps them.
local UNSWEPT = 64

local function grant(n, fence, is_first)
  redis.call('set', timeout_key(entry, n), 1, 'px', ttl)
  extend(lock, ttl)
  if count_claim(n, is_first) then
    redis.call('hset', claims, entry .. ' ' .. n, claim)
  end
  local answer = admitted({1, fence})
  -- The next waiter may be a reader too.
  wake()
  return answer
end

local holds = tonumber(redis.call('hget', lock, entry) or 0)
local mine = claim == '' and 1 or tonumber(redis.call('hget', claims, claim) or nil)
if holds > 0 and mine then
  -- Our own grant, whose reply was lost.
  return grant(math.min(mine, holds), last_fence())
end
if found == 'none' and my_turn() then
  sweep_records()
  redis.call('hset', lock, 'mode', 'read', entry, 1)
  return grant(1, shared_fence(), true)
end
local writes = found == 'write' and redis.call('hexists', lock, entry .. ':write') == 1
if holds > 0 or writes or (found == 'read' and my_turn()) then
  if redis.call('hlen', lock) % UNSWEPT == 0 then
    sweep_readers()
  end
  local fence = writes and last_fence() or shared_fence()
  return grant(redis.call('hincrby', lock, entry, 1), fence)
end
return busy(redis.call('pttl', lock))
