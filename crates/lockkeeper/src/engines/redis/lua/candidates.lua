-- Which of these hashes may be locks, so that only those are inspected.
-- KEYS: names
-- Returns their indexes.

local found = {}
for i, name in ipairs(KEYS) do
  if redis.call('pttl', name) >= 0 and redis.call('type', name).ok == 'hash' then
    local mode = redis.call('hget', name, 'mode')
    if mode == 'read' or mode == 'write' or mode == 'semaphore' or redis.call('hlen', name) == 1 then
      found[#found + 1] = i
    end
  end
end
return found
