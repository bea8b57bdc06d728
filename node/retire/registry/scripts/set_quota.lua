--[[
Set the tenant's pin quota. What is reserved above a lower quota stays until it is released or ends.

KEYS[1] meta  KEYS[2] quota: its own key, so that an ACL can make it read-only for nodes
KEYS[3] events: one of kind quota when it is another than before, for the nodes that hold shares
ARGV[1] term  ARGV[2] incarnation or ''
ARGV[3] blocks, or '' for unlimited
Returns 'OK'.
Errors: NEEDREGISTER tenant, TERMMISMATCH
]]
local refused = admit(KEYS[1])
if refused then
  return refused
end
local before = redis.call('GET', KEYS[2]) or ''
if ARGV[3] == '' then
  redis.call('DEL', KEYS[2])
else
  redis.call('SET', KEYS[2], ARGV[3])
end
if before ~= ARGV[3] then
  emit(KEYS[1], KEYS[3], 'quota', 'blocks', ARGV[3])
end
return 'OK'
