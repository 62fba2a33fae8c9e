-- A fair mutex.

local found, _, holder = kind_of(lock, state, stem)
if found ~= 'none' and found ~= 'mutex' then
  return {-1, found}
end

local token = KEYS[12]
local function fence_of_mutex(again)
  if not token then
    return again and last_fence() or mint()
  end
  return again and tonumber(redis.call('get', token) or 1) or redis.call('incr', token)
end

if found == 'mutex' and redis.call('hexists', lock, entry) == 1 then
  if claim ~= '' and redis.call('hexists', claims, claim) == 0 then
    redis.call('hincrby', lock, entry, 1)
  end
  extend(lock, ttl)
  count_claim('hold', false)
  return admitted_alone(fence_of_mutex(true))
end
if found == 'none' and my_turn() then
  redis.call('hset', lock, entry, 1)
  redis.call('pexpire', lock, ttl)
  count_claim('hold', true)
  return admitted_alone(fence_of_mutex(false))
end
if found == 'mutex' then
  wish(state, holder, publish)
end
return busy(redis.call('pttl', lock))
