-- The common mutex, if it is held, or others wait.

local publish, wake = ARGV[7], ARGV[8]
local found, left, holder = kind_of(lock, state)
if found == 'none' then
  if is_turn(line, waiters, field, publish, wake) then
    return take()
  end
elseif found ~= 'mutex' then
  return {-1, found}
elseif holder == field then
  -- Our own grant, whose reply was lost, or that was handed to us.
  call('pexpire', lock, ARGV[3])
  local fence = KEYS[5] and call('get', KEYS[5]) or call('hget', state, 'fence')
  return {1, tonumber(fence) or mint()}
end
local ahead = join ~= '0' and stay(line, waiters, field, ARGV[9], ARGV[10], join == '2')
return wait_for(left, holder, ahead, state)
