-- Shared by the scripts that acquire and release permits.

local function drop_permits(holder)
  redis.call('zrem', permits, holder)
  local held = redis.call('hget', lock, holder)
  if not held then
    return false
  end
  local count = 0
  for slot in string.gmatch(held, ' (%d+)') do
    redis.call('setbit', slots, slot, 0)
    count = count + 1
  end
  redis.call('hdel', lock, holder)
  redis.call('hdel', who, holder)
  if redis.call('hincrby', lock, 'taken', -count) <= 0 then
    redis.call('del', lock)
    redis.call('del', permits)
    redis.call('del', slots)
  end
  return true
end
