-- Releases permits, or leaves the queue.

local found = redis.call('type', lock).ok
local until_when = found == 'hash' and redis.call('zscore', permits, entry)
local alive = until_when and tonumber(until_when) > now
local dropped = until_when and drop_permits(entry)
local _, was_first = leave_queue()
redis.call('hdel', who, entry)
if dropped or was_first then
  wake()
end
return dropped and alive and 1 or 0
