-- Permits of a semaphore. The lock is a hash: mode, limit, taken, and per holder its fence and
-- slots. `permits` has the expiry of each holder, `slots` is a bitmap of the slots that are taken.

local take, limit = tonumber(ARGV[14]), ARGV[15]

local found = kind_of(lock, state, stem)
if found ~= 'none' and found ~= 'semaphore' then
  return {-1, found}
end
if found == 'semaphore' then
  local there = redis.call('hget', lock, 'limit')
  for _, late in ipairs(redis.call('zrangebyscore', permits, '-inf', now)) do
    drop_permits(late)
  end
  if there ~= limit and redis.call('exists', lock) == 1 then
    return {-1, found, there}
  end
end

local function keep()
  redis.call('zadd', permits, text(now + ttl), entry)
  for _, key in ipairs({lock, permits, slots}) do
    extend(key, ttl)
  end
end

local mine = redis.call('hget', lock, entry)
if mine then
  keep()
  local answer = {1}
  for number in string.gmatch(mine, '%d+') do
    answer[#answer + 1] = tonumber(number)
  end
  return admitted(answer)
end
local taken = tonumber(redis.call('hget', lock, 'taken') or 0)
if taken + take > tonumber(limit) or not my_turn() then
  local next_end = redis.call('zrange', permits, 0, 0, 'withscores')[2]
  return busy(next_end and next_end - now or 0)
end

if found == 'none' then
  sweep_records()
end
local answer = {1, mint()}
for _ = 1, take do
  local slot = redis.call('bitpos', slots, 0)
  redis.call('setbit', slots, slot, 1)
  answer[#answer + 1] = slot
end
redis.call('hset', lock, 'mode', 'semaphore', 'limit', limit, 'taken', taken + take, entry,
  text(answer[2]) .. ' ' .. table.concat(answer, ' ', 3))
keep()
admitted(answer)
-- The remaining permits may be enough for the next waiter.
wake()
return answer
