-- Asks holders to release their locks: records it for holders that subscribe later, and notifies
-- those that are subscribed.
-- KEYS: asked
-- ARGV: publish, how long to keep it, who asks and why, and the field of each holder

for i = 4, #ARGV do
  redis.call('hset', KEYS[1], ARGV[i], ARGV[3])
  redis.call('pexpire', KEYS[1], ARGV[2])
  redis.call(ARGV[1], KEYS[1] .. ':' .. ARGV[i], '0')
end
return #ARGV - 3
