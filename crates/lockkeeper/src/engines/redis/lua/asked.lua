-- Whether a holder was asked to give way.
-- KEYS: asked
-- ARGV: field

return redis.call('hexists', KEYS[1], ARGV[1])
