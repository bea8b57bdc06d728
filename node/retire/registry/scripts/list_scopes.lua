--[[
Read every scope of a tenant.

KEYS[1] meta  KEYS[2] scopes  KEYS[3] joins
Returns {{scope, record, ...}, {join, ...}}, unsorted.
Errors: NEEDREGISTER tenant (a lost tenant is not an empty one)
]]
if redis.call('EXISTS', KEYS[1]) == 0 then
  return refuse('NEEDREGISTER tenant')
end
return { redis.call('HGETALL', KEYS[2]), redis.call('ZRANGE', KEYS[3], 0, -1) }
