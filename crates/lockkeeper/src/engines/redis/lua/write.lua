-- The exclusive side of a read-write lock. The entry is the writer's field.

local found = kind_of(lock, state, stem)
if found ~= 'none' and found ~= 'read' and found ~= 'write' then
  return {-1, found}
end

if found == 'write' and redis.call('hexists', lock, entry) == 1 then
  if claim ~= '' and redis.call('hexists', claims, claim) == 0 then
    redis.call('hincrby', lock, entry, 1)
  end
  extend(lock, ttl)
  count_claim('hold', false)
  return admitted_alone(last_fence())
end
if found == 'none' and my_turn() then
  redis.call('hset', lock, 'mode', 'write', entry, 1)
  redis.call('pexpire', lock, ttl)
  count_claim('hold', true)
  return admitted_alone(mint())
end
return busy(redis.call('pttl', lock))
