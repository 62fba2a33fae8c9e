-- The waiters for the common mutex, which has no queue: a hash of records, each with the time until
-- which it counts. Only for inspection.

-- Nothing here may fail, because the lock is busy all the same: a full server refuses this, and while
-- a slot of a Cluster moves, this key may be on the other server.
local function show_waiter(waiters, field, time, record)
  local clock = redis.call('time')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.pcall('hset', waiters, field, string.format('%.0f', now + time) .. '\t' .. record)
  redis.pcall('pexpire', waiters, time)
  -- Dead waiters are forgotten with the last waiter, or at random, in one of as many calls as there
  -- are waiters.
  local shown = redis.pcall('hlen', waiters)
  if type(shown) == 'number' and shown > 1 and clock[2] % shown == 0 then
    local all = redis.pcall('hgetall', waiters)
    for i = 1, #all, 2 do
      if tonumber(string.match(all[i + 1], '^%d+') or 0) < now then
        redis.pcall('hdel', waiters, all[i])
      end
    end
  end
end
