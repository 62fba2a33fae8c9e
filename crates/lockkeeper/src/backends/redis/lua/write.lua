-- The exclusive side of a read-write lock. The entry is the writer's field.

local found = redis.call('type', lock).ok
if found ~= 'none' and found ~= 'hash' then
  return {-1, found}
end
local mode = redis.call('hget', lock, 'mode')
if found == 'hash' and mode ~= 'read' and mode ~= 'write' then
  return {-1, mode or 'mutex'}
end

if mode == 'write' and redis.call('hexists', lock, entry) == 1 then
  if claim ~= '' and redis.call('hexists', claims, claim) == 0 then
    redis.call('hincrby', lock, entry, 1)
  end
  extend(lock, ttl)
  count_claim(false)
  return admitted_alone(last_fence())
end
if not mode and my_turn() then
  redis.call('hset', lock, 'mode', 'write', entry, 1)
  redis.call('pexpire', lock, ttl)
  count_claim(true)
  return admitted_alone(mint())
end
return busy(redis.call('pttl', lock))
