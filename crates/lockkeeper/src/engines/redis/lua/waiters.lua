-- Those who wait for the common mutex, which has no line: a hash of records, each with the time until
-- which it counts. Only for people who look.

-- A server that is full refuses this, and the lock is busy all the same: so nothing here may fail.
local function show_waiter(waiters, field, time, record)
  local clock = redis.call('time')
  local now = clock[1] * 1000 + math.floor(clock[2] / 1000)
  redis.pcall('hset', waiters, field, string.format('%.0f', now + time) .. '\t' .. record)
  redis.pcall('pexpire', waiters, time)
  -- Those who died are forgotten with the last who waits, or by one in as many as there are.
  local shown = redis.call('hlen', waiters)
  if shown > 1 and clock[2] % shown == 0 then
    local all = redis.call('hgetall', waiters)
    for i = 1, #all, 2 do
      if tonumber(string.match(all[i + 1], '^%d+') or 0) < now then
        redis.call('hdel', waiters, all[i])
      end
    end
  end
end
