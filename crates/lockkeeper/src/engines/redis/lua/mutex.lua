-- The common mutex, if it is held, or others wait, or its counter is new, or fences are reserved.

local hint, life, ttl, field, record = unpack(ARGV)
local join, publish, lease, place = read_queue(ARGV[6])
local wake, waiters = channels(queue), beside_queue(queue, 'lockkeeper_waiters')

-- The answer to a grant. Fences are reserved only from numbers that the clock has passed: should a failover
-- lose the counter, it continues from the clock, and so above all of them.
local function granted(counted)
  counted = mint(state, token, hint, life, counted)
  local most = not token and tonumber(ARGV[7])
  if not most then
    return counted
  end
  local clock = call('time')
  local reserved = math.min(most, clock[1] * 1000000 + clock[2] - counted)
  if reserved <= 0 then
    return counted
  end
  call('hincrby', state, 'fence', string.format('%.0f', reserved))
  -- A counter that is kept near the clock is never set from it, which would do this.
  call('pexpire', state, life)
  return {2, counted, reserved}
end

if fence ~= nil then
  return granted(fence)
end
local found, left, holder = kind_of(lock, state)
if found == 'none' then
  if is_turn(queue, waiters, field, publish, wake) then
    call('hset', lock, field, '1')
    call('pexpire', lock, ttl)
    call('hset', state, 'held', record)
    -- It may be impossible while a slot of a Cluster moves.
    redis.pcall('hdel', waiters, field)
    return granted()
  end
elseif found ~= 'mutex' then
  return {-1, found}
elseif holder == field then
  -- Our own grant, whose reply was lost, or that was handed to us.
  call('pexpire', lock, ttl)
  fence = token and call('get', token) or call('hget', state, 'fence')
  return {1, tonumber(fence) or mint(state, token, hint, life)}
end
local ahead = join ~= '0' and stay(queue, waiters, field, place, lease, join == '2')
return wait_for(left, holder, ahead, state, wish, publish)
