-- Which of these hashes may be locks, so that only those are inspected.
-- KEYS: names
-- Returns their indexes.

-- What stands beside a lock of ours is no lock, whatever it looks like.
local function is_beside(name)
  return string.find(name, '^lockkeeper_asked[:#]') or string.find(name, '^lockkeeper_waiters[:#]')
end

local found = {}
for i, name in ipairs(KEYS) do
  if not is_beside(name) and redis.call('pttl', name) >= 0 and redis.call('type', name).ok == 'hash' then
    local mode = redis.call('hget', name, 'mode')
    if mode == 'read' or mode == 'write' or mode == 'semaphore' or redis.call('hlen', name) == 1 then
      found[#found + 1] = i
    end
  end
end
return found
