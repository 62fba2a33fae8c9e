-- Asks holders to release their locks: records it for holders that subscribe later, and notifies
-- those that are subscribed.
-- KEYS: asked
-- ARGV: publish, how long to keep it, who asks and why, and the field of each holder

-- What is kept is released at the same message as for a waiter.
local wake = 'lockkeeper_wake' .. string.sub(KEYS[1], #'lockkeeper_asked' + 1) .. ':'
for i = 4, #ARGV do
  redis.call('hset', KEYS[1], ARGV[i], ARGV[3])
  redis.call('pexpire', KEYS[1], ARGV[2])
  redis.call(ARGV[1], KEYS[1] .. ':' .. ARGV[i], '0')
  redis.call(ARGV[1], wake .. string.sub(ARGV[i], 1, 36), ARGV[i] .. ' wish')
end
return #ARGV - 3
