-- A mutex that is fair, or has an owner.

local found = kind_of(lock, state, stem)
if found ~= 'none' and found ~= 'mutex' then
  return {-1, found}
end

local token = KEYS[10]
-- Of one who waits without a place in the line: how long to show that, or 0, and the record to show.
local show_for, shown = ARGV[14], ARGV[15]
local waiters = beside(state, 'lockkeeper_waiters')
local function admitted_mutex(fence)
  if show_for then
    redis.pcall('hdel', waiters, entry)
  end
  return admitted_alone(fence)
end
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
  return admitted_mutex(fence_of_mutex(true))
end
if found == 'none' and my_turn() then
  redis.call('hset', lock, entry, 1)
  redis.call('pexpire', lock, ttl)
  count_claim('hold', true)
  return admitted_mutex(fence_of_mutex(false))
end
if (tonumber(show_for) or 0) > 0 then
  show_waiter(waiters, entry, show_for, shown)
end
return busy(redis.call('pttl', lock))
