--[[
Record a tenant's incarnation and raise the registry's term: after hello created it, around a rebuild.

KEYS[1] registry: hash, see open.lua
ARGV[1] term: the registry's becomes the larger of the two
ARGV[2] tenant
ARGV[3] incarnation of the tenant, or '' to raise the term only
ARGV[4] incarnation to write when the registry is empty
Returns 'OK'. No error replies.
]]
local held = redis.call('HGET', KEYS[1], 'term')
if not held then
  redis.call('HSET', KEYS[1], 'incarnation', ARGV[4])
end
if not held or tonumber(held) < tonumber(ARGV[1]) then
  redis.call('HSET', KEYS[1], 'term', ARGV[1])
end
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[1], 'tenant:' .. ARGV[2], ARGV[3])
end
return 'OK'
