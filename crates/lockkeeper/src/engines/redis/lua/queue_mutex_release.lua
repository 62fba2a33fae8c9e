-- Releases one hold of a mutex, or leaves its queue.

if ARGV[14] then
  -- It was shown among those who wait without a place in the line.
  redis.pcall('hdel', 'lockkeeper_waiters' .. string.sub(state, #'lockkeeper' + 1), entry)
end
local found = redis.call('type', lock).ok
local held = found == 'hash' and redis.call('hexists', lock, entry) == 1
if not held or (claim ~= '' and redis.call('hdel', claims, claim) == 0) then
  local _, was_first = leave_line()
  redis.call('hdel', who, entry)
  if was_first and found == 'none' then
    wake()
  end
  return 0
end
-- Only an owner has more than one. A full server refuses a script whose first write needs memory.
if claim ~= '' and redis.call('hincrby', lock, entry, -1) > 0 then
  return 1
end
redis.call('del', lock)
redis.call('del', claims)
redis.call('hdel', who, entry)
forget_question()
if not wake() then
  redis.call(publish, base_channel, '0')
end
return 1
